// Quality of the answers in order of time, 0 to 1.

/** The curve; nothing where fewer than two answers have a quality. */
export function Quality({ records }) {
  const points = records.filter((record) => record.quality !== null).reverse();
  if (points.length < 2) return null;
  const x = (i) => 4 + (632 * i) / (points.length - 1);
  const y = (quality) => 76 - 70 * quality;
  return (
    <figure class="plot">
      <figcaption>Quality of the last {points.length} judged answers</figcaption>
      <svg id="quality" viewBox="0 0 640 80" role="img" aria-label={`Quality of the last ${points.length} answers, 0 to 1`}>
        {[0, 0.5, 1].map((level) => <path key={level} class="axis" d={`M0 ${y(level)}H640`} />)}
        <polyline class="line" points={points.map((record, i) => `${x(i).toFixed(1)},${y(record.quality).toFixed(1)}`).join(" ")} />
      </svg>
    </figure>
  );
}
