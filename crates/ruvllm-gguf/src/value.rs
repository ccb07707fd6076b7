//! Metadata values: every type of the format, arrays as typed vectors.

use std::fmt;

use crate::cursor::Cursor;
use crate::error::{GgufError, GgufErrorKind};
use crate::limits;
use crate::strings::StringArray;

macro_rules! values {
    ($($(#[$doc:meta])* $variant:ident($rust:ty) = $id:literal, $name:literal;)*) => {
        /// The type of a metadata value, numbered as in the file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ValueType {
            $($(#[$doc])* $variant,)*
            /// UTF-8 text.
            String,
            /// A sequence of values of one type.
            Array,
        }

        /// A metadata value.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Value {
            $($(#[$doc])* $variant($rust),)*
            /// UTF-8 text.
            String(String),
            /// A sequence of values of one type.
            Array(Array),
        }

        /// A metadata array: values of one type.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Array {
            $($(#[$doc])* $variant(Vec<$rust>),)*
            /// UTF-8 texts.
            String(StringArray),
            /// Arrays, each with a type of its own.
            Array(Vec<Array>),
        }

        impl ValueType {
            /// Returns the type with this id, or `None` if the format has none such.
            pub fn from_id(id: u32) -> Option<ValueType> {
                match id {
                    $($id => Some(ValueType::$variant),)*
                    8 => Some(ValueType::String),
                    9 => Some(ValueType::Array),
                    _ => None,
                }
            }

            /// Returns the id files use.
            pub fn id(self) -> u32 {
                match self { $(ValueType::$variant => $id,)* ValueType::String => 8, ValueType::Array => 9 }
            }

            /// Returns the name people read, e.g. `u32`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ValueType::$variant => $name,)*
                    ValueType::String => "string",
                    ValueType::Array => "array",
                }
            }
        }

        impl Value {
            /// Returns the type of this value.
            pub fn value_type(&self) -> ValueType {
                match self {
                    $(Value::$variant(_) => ValueType::$variant,)*
                    Value::String(_) => ValueType::String,
                    Value::Array(_) => ValueType::Array,
                }
            }

            fn read_as(cursor: &mut Cursor<'_>, ty: ValueType) -> Result<Value, GgufError> {
                match ty {
                    $(ValueType::$variant => Ok(Value::$variant(<$rust>::read(cursor)?)),)*
                    ValueType::String => Ok(Value::String(cursor.str()?.to_owned())),
                    ValueType::Array => Ok(Value::Array(Array::read(cursor, 1)?)),
                }
            }
        }

        impl Array {
            /// Returns the type of the elements.
            pub fn value_type(&self) -> ValueType {
                match self {
                    $(Array::$variant(_) => ValueType::$variant,)*
                    Array::String(_) => ValueType::String,
                    Array::Array(_) => ValueType::Array,
                }
            }

            /// Returns how many elements there are.
            pub fn len(&self) -> usize {
                match self {
                    $(Array::$variant(items) => items.len(),)*
                    Array::String(items) => items.len(),
                    Array::Array(items) => items.len(),
                }
            }

            fn read_items(cursor: &mut Cursor<'_>, ty: ValueType, n: u64, depth: usize) -> Result<Array, GgufError> {
                match ty {
                    $(ValueType::$variant => Ok(Array::$variant(<$rust>::read_many(cursor, n)?)),)*
                    ValueType::String => Ok(Array::String(StringArray::read(cursor, n)?)),
                    ValueType::Array => Array::read_nested(cursor, n, depth),
                }
            }
        }

        $(impl From<$rust> for Value {
            fn from(value: $rust) -> Value {
                Value::$variant(value)
            }
        }

        impl From<Vec<$rust>> for Value {
            fn from(items: Vec<$rust>) -> Value {
                Value::Array(Array::$variant(items))
            }
        })*
    };
}

values! {
    /// 8-bit unsigned.
    U8(u8) = 0, "u8";
    /// 8-bit signed.
    I8(i8) = 1, "i8";
    /// 16-bit unsigned.
    U16(u16) = 2, "u16";
    /// 16-bit signed.
    I16(i16) = 3, "i16";
    /// 32-bit unsigned.
    U32(u32) = 4, "u32";
    /// 32-bit signed.
    I32(i32) = 5, "i32";
    /// 32-bit float.
    F32(f32) = 6, "f32";
    /// Truth value, one byte on disk.
    Bool(bool) = 7, "bool";
    /// 64-bit unsigned.
    U64(u64) = 10, "u64";
    /// 64-bit signed.
    I64(i64) = 11, "i64";
    /// 64-bit float.
    F64(f64) = 12, "f64";
}

/// A fixed-size value as it lies in the file.
pub(crate) trait Scalar: Sized {
    /// Reads one.
    fn read(cursor: &mut Cursor<'_>) -> Result<Self, GgufError>;
    /// Reads `n`, having checked that the file holds them.
    fn read_many(cursor: &mut Cursor<'_>, n: u64) -> Result<Vec<Self>, GgufError>;
    /// Appends the little-endian bytes.
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! scalars {
    ($($rust:ty)*) => {$(impl Scalar for $rust {
        fn read(cursor: &mut Cursor<'_>) -> Result<$rust, GgufError> {
            Ok(<$rust>::from_le_bytes(cursor.array()?))
        }

        fn read_many(cursor: &mut Cursor<'_>, n: u64) -> Result<Vec<$rust>, GgufError> {
            let len = cursor.check_fits(n, size_of::<$rust>())?;
            let bytes = cursor.take((len * size_of::<$rust>()) as u64)?;
            Ok(bytes.as_chunks().0.iter().map(|&item| <$rust>::from_le_bytes(item)).collect())
        }

        fn write(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.to_le_bytes());
        }
    })*};
}

scalars! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 }

impl Scalar for bool {
    fn read(cursor: &mut Cursor<'_>) -> Result<bool, GgufError> {
        let at = cursor.pos();
        bool_from(cursor.array::<1>()?[0], at)
    }

    fn read_many(cursor: &mut Cursor<'_>, n: u64) -> Result<Vec<bool>, GgufError> {
        let at = cursor.pos();
        let bytes = cursor.take(n)?;
        let mut out = Vec::with_capacity(bytes.len());
        for (i, &byte) in bytes.iter().enumerate() {
            out.push(bool_from(byte, at + i)?);
        }
        Ok(out)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

fn bool_from(byte: u8, at: usize) -> Result<bool, GgufError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(GgufError::invalid(format!("a bool is {byte}, expected 0 or 1 (at byte {at})"))),
    }
}

impl Value {
    /// Reads a type id and the value after it.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Value, GgufError> {
        let ty = ValueType::read(cursor)?;
        Value::read_as(cursor, ty)
    }

    /// Returns the type in words, for arrays with element type and length, e.g. `array of 4 u32`.
    pub fn type_name(&self) -> String {
        match self {
            Value::Array(array) => format!("array of {} {}", array.len(), array.value_type()),
            other => other.value_type().to_string(),
        }
    }

    /// Returns whether this is an array.
    pub fn is_array(&self) -> bool {
        matches!(self, Value::Array(_))
    }

    /// Returns an array of bools or of integers (not zero counts as true) as flags, or `None` for other values.
    pub fn to_flags(&self) -> Option<Vec<bool>> {
        match self {
            Value::Array(Array::Bool(items)) => Some(items.clone()),
            Value::Array(array) => Some(array.integers()?.map(|item| item != 0).collect()),
            _ => None,
        }
    }

    /// Returns the integer of any integer type, or `None` for other types.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }
}

impl Array {
    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(cursor: &mut Cursor<'_>, depth: usize) -> Result<Array, GgufError> {
        let ty = ValueType::read(cursor)?;
        let n = cursor.len()?;
        Array::read_items(cursor, ty, n, depth)
    }

    fn read_nested(cursor: &mut Cursor<'_>, n: u64, depth: usize) -> Result<Array, GgufError> {
        if depth >= limits::ARRAY_DEPTH_MAX {
            let message = format!("arrays nested deeper than {} (at byte {})", limits::ARRAY_DEPTH_MAX, cursor.pos());
            return Err(GgufError::new(GgufErrorKind::Limit, message));
        }
        let len = cursor.check_fits(n, 4 + cursor.len_bytes())?;
        cursor.count_nested(n)?;
        let mut items = Vec::with_capacity(len);
        for _ in 0..len {
            items.push(Array::read(cursor, depth + 1)?);
        }
        Ok(Array::Array(items))
    }

    /// Returns the elements of any integer type, or `None` for other types.
    pub fn integers(&self) -> Option<Box<dyn Iterator<Item = i128> + '_>> {
        fn widen<T: Copy + Into<i128>>(items: &[T]) -> Box<dyn Iterator<Item = i128> + '_> {
            Box::new(items.iter().map(|&item| item.into()))
        }
        Some(match self {
            Array::U8(items) => widen(items),
            Array::I8(items) => widen(items),
            Array::U16(items) => widen(items),
            Array::I16(items) => widen(items),
            Array::U32(items) => widen(items),
            Array::I32(items) => widen(items),
            Array::U64(items) => widen(items),
            Array::I64(items) => widen(items),
            _ => return None,
        })
    }
}

impl ValueType {
    fn read(cursor: &mut Cursor<'_>) -> Result<ValueType, GgufError> {
        let (at, id) = (cursor.pos(), cursor.u32()?);
        ValueType::from_id(id).ok_or_else(|| {
            let message = format!("unknown metadata value type {id}, expected 0 to 12 (at byte {at})");
            GgufError::new(GgufErrorKind::Unsupported, message)
        })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::String(text)
    }
}

impl From<StringArray> for Value {
    fn from(items: StringArray) -> Value {
        Value::Array(Array::String(items))
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

macro_rules! from_strings {
    ($($string:ty)*) => {$(impl From<Vec<$string>> for Value {
        fn from(items: Vec<$string>) -> Value {
            Value::Array(Array::String(items.into_iter().collect()))
        }
    })*};
}

from_strings! { &str String }
