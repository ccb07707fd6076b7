//! Keys of files that change, and lines that are wrong.

use std::sync::atomic::Ordering;

use super::*;

fn bearer(key: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, format!("Bearer {key}").parse().expect("a header"));
    headers
}

#[test]
fn keys_have_tenants_and_change_with_their_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "# who may\nann  key-of-ann concurrent=2\nbob  key-of-bob priority=-3 # slow\n")
        .expect("written");
    let options = KeyOptions { file: Some(file.clone()), lines: vec!["ann other-of-ann".to_owned()] };
    let keys = Keys::new(options).expect("two keys and one");
    let name =
        |key: &str| keys.tenant(&bearer(key)).map(|tenant| tenant.name.to_string()).map_err(|error| error.status);
    assert_eq!(name("key-of-ann"), Ok("ann".to_owned()));
    assert_eq!(name("key-of-bo"), Err(StatusCode::UNAUTHORIZED));
    assert_eq!(keys.tenant(&HeaderMap::new()).map(drop).map_err(|error| error.status), Err(StatusCode::UNAUTHORIZED));
    let (ann, other, bob) = (
        keys.tenant(&bearer("key-of-ann")).expect("known"),
        keys.tenant(&bearer("other-of-ann")).expect("known"),
        keys.tenant(&bearer("key-of-bob")).expect("known"),
    );
    assert_eq!((ann.id, bob.priority), (other.id, -3));
    assert_ne!(ann.id, bob.id);
    assert_eq!(keys.tenants(), [ann.id, bob.id, ann.id]);
    let places = [ann.enter().expect("one"), ann.enter().expect("two")];
    assert_eq!(ann.enter().map(drop).map_err(|error| error.status), Err(StatusCode::TOO_MANY_REQUESTS));
    drop(places);
    drop(ann.enter().expect("there is room again"));

    // Revoked while it is used.
    let place = ann.enter().expect("there is room");
    std::thread::sleep(LOOK_INTERVAL);
    std::fs::write(&file, "bob key-of-bob kv_mib=3 adapter_mib=5\n").expect("written");
    assert_eq!(name("key-of-ann"), Err(StatusCode::UNAUTHORIZED));
    assert_eq!(name("key-of-bob"), Ok("bob".to_owned()));
    assert!(place.revoked.is.load(Ordering::Acquire) && !bob.revoked.is.load(Ordering::Acquire));
    assert_eq!(keys.quotas(), [(bob.id, Quota { kv_bytes: Some(3 << 20), adapter_bytes: Some(5 << 20) })]);
    std::thread::sleep(LOOK_INTERVAL);
    std::fs::write(&file, "bob key-of-bob salt=other\n").expect("written");
    assert_ne!(keys.tenant(&bearer("key-of-bob")).expect("known").id, bob.id);
    assert_eq!(keys.quotas(), [(bob.id, Quota::default())]);
}

#[test]
fn wrong_lines_are_told_without_the_key() {
    let error = |line: &str| {
        Keys::new(KeyOptions { file: None, lines: vec![line.to_owned()] }).map(drop).expect_err("a wrong line")
    };
    assert_eq!(error("ann short"), "key 1: the key of 'ann' has 5 characters; use at least 8");
    assert!(error("secret-key").starts_with("key 1: a line is 'name key "));
    assert!(error(" # nothing").starts_with("the key file has no keys"));
}

const FILE: &str = "# who may\r\nroot  key-of-root admin\r\n\r\nann  key-of-ann salt=x # slow";

/// Keys of a file and one of the options, with the folder that the file lies in.
fn administered() -> (tempfile::TempDir, Keys) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, FILE).expect("written");
    let keys = Keys::new(KeyOptions { file: Some(file), lines: vec!["bob key-of-bob".to_owned()] }).expect("keys");
    (folder, keys)
}

fn admin(tenant: &Tenant) -> KeyAdmin<'_> {
    KeyAdmin { tenant, metrics_key: Some("ann") }
}

fn refused<T: std::fmt::Debug>(result: Result<T, ApiError>) -> String {
    let error = result.expect_err("it is refused");
    format!("{} {}", error.status.as_u16(), error.message)
}

#[test]
fn a_key_is_made_and_deleted_and_the_rest_of_the_file_stays() {
    let (folder, keys) = administered();
    let text = || std::fs::read_to_string(folder.path().join("keys")).expect("read");
    let known = |key: &str| keys.tenant(&bearer(key)).ok();
    let root = known("key-of-root").expect("known");
    let limits = KeyLimits { concurrent_max: Some(2), priority: -1, kv_mib: Some(3), adapter_mib: Some(4) };
    let new = NewKey { name: "ann".to_owned(), limits, is_admin: true };
    let made = keys.create(admin(&root), &new).expect("made");
    assert!(made.key.len() == 46 && made.key.starts_with("sk-") && !format!("{made:?}").contains(&made.key));
    let digest = hex::encode(Sha256::digest(made.key.as_bytes()));
    let line = format!("ann sha256:{digest} concurrent=2 kv_mib=3 adapter_mib=4 priority=-1 salt=x admin");
    assert_eq!(text(), format!("{FILE}\n{line}\n"));
    // It is known at once, its SHA-256 is none, and it is ann's.
    let (ann, second) = (known("key-of-ann").expect("known"), known(&made.key).expect("known"));
    assert_eq!((second.id, second.is_admin, ann.is_admin), (ann.id, true, false));
    assert!(known(&digest).is_none() && known(&format!("sha256:{digest}")).is_none());
    let list = keys.list(admin(&root)).expect("root may");
    let rows: Vec<_> = list.iter().map(|key| (&*key.name, key.is_admin, key.source, key.can_be_deleted)).collect();
    let (of_file, of_options) = (KeySource::File, KeySource::Options);
    assert_eq!(
        rows,
        [
            ("root", true, of_file, false),
            ("ann", false, of_file, true),
            ("ann", true, of_file, true),
            ("bob", false, of_options, false)
        ]
    );
    assert_eq!((&list[2], made.info.limits, &digest[..12]), (&made.info, limits, &*made.info.id));
    let slot = second.enter().expect("there is room");
    keys.delete(admin(&root), &made.info.id).expect("deleted");
    assert_eq!(text(), format!("{FILE}\n"));
    assert!(known(&made.key).is_none() && slot.revoked.is.load(Ordering::Acquire));
    assert!(refused(keys.delete(admin(&root), &made.info.id)).starts_with("404 there is no key"));
}

#[test]
fn keys_that_must_stay_do() {
    let (folder, keys) = administered();
    let known = |key: &str| keys.tenant(&bearer(key)).expect("known");
    let (root, ann, bob) = (known("key-of-root"), known("key-of-ann"), known("key-of-bob"));
    let id = |tenant: &Tenant| hex::encode(&tenant.digest[..6]);
    let delete = |caller: &Tenant, gone: &Tenant| refused(keys.delete(admin(caller), &id(gone)));
    assert!(delete(&root, &root).starts_with("409 this is the last admin key"));
    assert!(delete(&root, &bob).starts_with("409 the key of 'bob' is no line of the key file"));
    assert!(delete(&root, &ann).starts_with("409 the last key of 'ann' alone may read the metrics"));
    assert!(delete(&ann, &bob).starts_with("403 this key may not administer keys"));
    assert!(refused(keys.list(admin(&bob))).starts_with("403 "));
    for name in ["", "a b", "a#", "#a", "a\nb", "a\u{7}", &"a".repeat(101)] {
        let new = NewKey { name: name.to_owned(), ..NewKey::default() };
        assert!(refused(keys.create(admin(&root), &new)).starts_with("400 a name has"), "{name:?}");
    }
    let new = NewKey { name: "other".to_owned(), is_admin: true, ..NewKey::default() };
    let other = keys.create(admin(&root), &new).expect("made");
    assert_eq!(delete(&root, &root), "409 a key cannot delete itself; ask with another admin key");
    // Two that delete each other: one of them stays.
    let other = known(&other.key);
    keys.delete(admin(&other), &id(&root)).expect("deleted");
    assert!(delete(&root, &other).starts_with("401 "));
    assert!(delete(&other, &other).starts_with("409 this is the last admin key"));
    // A file that somebody broke is mended first, and not changed.
    let file = folder.path().join("keys");
    let text = std::fs::read_to_string(&file).expect("read") + "eve short";
    std::fs::write(&file, &text).expect("written");
    let broken = refused(keys.create(admin(&other), &new));
    assert!(broken.starts_with("409 the key file has to be mended") && broken.contains("line"), "{broken}");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), text);
    // Without a file nobody administers keys.
    let none = Keys::new(KeyOptions { file: None, lines: vec!["root key-of-root admin".to_owned()] }).expect("a key");
    let root = none.tenant(&bearer("key-of-root")).expect("known");
    assert_eq!(
        refused(none.create(admin(&root), &new)),
        "404 this server has no key file; start it with --api-key-file FILE"
    );
}
