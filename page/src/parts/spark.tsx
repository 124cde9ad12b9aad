// A line without axes, as high as a line of text. The number beside it says what it is.

interface Props {
  values: (number | undefined)[];
  /** The number of values that fill the width. */
  room: number;
}

const [WIDTH, HEIGHT] = [72, 20];

export function Spark({ values, room }: Props) {
  const most = Math.max(1e-12, ...values.map((value) => value ?? 0));
  const x = (index: number) => ((room - values.length + index) / Math.max(1, room - 1)) * WIDTH;
  const y = (value: number) => HEIGHT - 1 - (value / most) * (HEIGHT - 3);
  const points = values.flatMap((value, index) => (value === undefined ? [] : [`${x(index).toFixed(1)},${y(value).toFixed(1)}`]));
  return (
    <svg class="spark" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
      <line x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
      {points.length > 1 && <polyline points={points.join(" ")} />}
    </svg>
  );
}
