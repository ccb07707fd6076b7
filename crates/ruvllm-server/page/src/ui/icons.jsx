// Icons: strokes of one width, hidden from screen readers. The button around one has the name.

const icon = (d) => function Icon() {
  return <svg class="glyph" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d={d} /></svg>;
};

export const Plus = icon("M12 5v14M5 12h14");
export const Menu = icon("M4 7h16M4 12h16M4 17h16");
export const Close = icon("M6 6l12 12M18 6L6 18");
export const Sliders = icon("M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4");
export const Chat = icon("M4 6.5A2.5 2.5 0 0 1 6.5 4h11A2.5 2.5 0 0 1 20 6.5v7a2.5 2.5 0 0 1-2.5 2.5H11l-5 4v-4a2 2 0 0 1-2-2z");
export const Growth = icon("M4 19h16M5 15l4-4 4 3 6-8M15 6h4v4");
export const Book = icon("M6 4h11a1 1 0 0 1 1 1v15H7a2 2 0 0 1-2-2V5a1 1 0 0 1 1-1zM5 18a2 2 0 0 1 2-2h11M9 8h5");
export const Shield = icon("M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4");
export const Gauge = icon("M4 18a8.5 8.5 0 1 1 16 0M12 15l4-5");
export const Gear = icon("M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.6l2.2 2.2M16.2 16.2l2.2 2.2M18.4 5.6l-2.2 2.2M7.8 16.2l-2.2 2.2");
export const Copy = icon("M9 9h10v11H9zM5 15V4h10");
export const Again = icon("M19 7v5h-5M18.4 12A7 7 0 1 0 17 16.5");
export const Pen = icon("M5 19l1-4L16 5l3 3L9 18z");
export const Good = icon("M7 11v9H4v-9zM7 12l4-8c2 0 2.5 1.5 2 3.500L12.500 10H19a1.500 1.500 0 0 1 1.500 1.800l-1.200 6.500A2 2 0 0 1 17.300 20H7");
export const Bad = icon("M17 13V4h3v9zM17 12l-4 8c-2 0-2.5-1.5-2-3.500L11.500 14H5a1.500 1.500 0 0 1-1.500-1.800l1.200-6.500A2 2 0 0 1 6.700 4H17");
export const Clip = icon("M19 11l-7.500 7.500a4.500 4.500 0 0 1-6.400-6.400L13 4.300a3 3 0 0 1 4.300 4.300l-7.600 7.500a1.500 1.500 0 0 1-2.100-2.100L14 7.500");
export const Up = icon("M12 19V5M6 11l6-6 6 6");
export const Stop = icon("M7 7h10v10H7z");
export const Left = icon("M14 6l-6 6 6 6");
export const Right = icon("M10 6l6 6-6 6");
export const Bin = icon("M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13");
export const Bars = icon("M5 20v-7M10 20V8M15 20v-9M20 20V4");
export const Info = icon("M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 11v5M12 8v.1");
