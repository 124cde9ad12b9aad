// How the pod and its installation are, and what to do about it.
import { useMemo } from "preact/hooks";
import { type Check, type Mark, checksOf } from "../logic/checks.ts";
import { double, span } from "../logic/format.ts";
import { type LastMinute, quantileOf, rateOf } from "../logic/metrics.ts";
import type { Polled } from "../live/polled.ts";
import type { Health } from "../live/sampler.ts";
import { Chart } from "../parts/chart.tsx";
import { Card, Trouble } from "../parts/ui.tsx";

interface Props {
  minute: Polled<LastMinute>;
  health: Polled<Health>;
}

export function InstallationPage({ minute, health }: Props) {
  const sections = minute.data ? checksOf(minute.data) : [];
  const open = sections.flatMap(({ checks }) => checks).filter(({ mark }) => mark !== "good").length;
  return (
    <>
      <h1 class="hidden" tabIndex={-1}>
        Installation
      </h1>
      <HealthCard health={health} open={minute.data ? open : undefined} />
      {minute.error && !minute.data && (
        <Card title="Metrics">
          <Trouble error={minute.error} />
        </Card>
      )}
      {minute.data && <Curves minute={minute.data} readings={minute.data.readings.length} />}
      <div class="sections">
        {sections.map(({ title, checks }) => (
          <Card title={title} key={title}>
            <ul class="checks">
              {checks.map((check) => (
                <Line key={check.title} check={check} />
              ))}
            </ul>
          </Card>
        ))}
      </div>
    </>
  );
}

const MARKS: Record<Mark, string> = { good: "fine", look: "look at this", bad: "wrong" };

function Line({ check }: { check: Check }) {
  const { title, value, mark, means, act, metric, problems, detail = [] } = check;
  return (
    <li>
      <details>
        <summary>
          <span class={`dot ${mark}`} aria-hidden="true" />
          <span class="check-title">
            {title}
            <span class="hidden"> ({MARKS[mark]})</span>
          </span>
          <span class="check-value">{value}</span>
        </summary>
        <div class="check-body">
          <p>{means}</p>
          <p>
            <strong>What to do:</strong> {act}
          </p>
          {detail.length > 0 && (
            <dl class="figures">
              {detail.map(([name, figure]) => (
                <div key={name}>
                  <dt>{name}</dt>
                  <dd>{figure}</dd>
                </div>
              ))}
            </dl>
          )}
          <p class="soft">
            <code>{metric}</code>
            {problems.map((slug) => (
              <>
                {" · "}
                <a href={`/problems/${slug}`}>{slug}</a>
              </>
            ))}
          </p>
        </div>
      </details>
    </li>
  );
}

function HealthCard({ health, open }: { health: Polled<Health>; open: number | undefined }) {
  const { data } = health;
  return (
    <Card title="Health">
      {health.error && !data && <Trouble error={health.error} />}
      {data && (
        <p class="health">
          <span class={`dot ${data.isReady ? "good" : "bad"}`} aria-hidden="true" />
          <strong>{data.isReady ? "Ready" : "Not ready"}</strong>
          <span>{data.isReady ? "This pod takes requests." : data.reason}</span>
          {!data.isReady && <a href="/problems/not-ready">What to do</a>}
        </p>
      )}
      {data && Object.keys(data.checks).length > 0 && (
        <ul class="tags">
          {Object.entries(data.checks).map(([name, result]) => (
            <li key={name}>
              {name}: {result}
            </li>
          ))}
        </ul>
      )}
      {open !== undefined && (
        <p class="soft">
          {open === 0 ? "Every figure of this pod is within the limits of the alerts. Other pods have their own." : `${open === 1 ? "One figure" : `${open} figures`} below needs a look.`.replace("figures below needs", "figures below need")}
        </p>
      )}
    </Card>
  );
}

function Curves({ minute, readings }: { minute: LastMinute; readings: number }) {
  const [times, updates, p99] = useMemo(() => {
    const rates = minute.series(rateOf("orderfree_updates_total"));
    const slow = minute.series(quantileOf(0.99, "orderfree_request_seconds"));
    return [rates.map(({ at }) => at), rates.map(({ value }) => value), slow.map(({ value }) => value)] as const;
  }, [minute.readings.at(-1)]);
  return (
    <div class="halves">
      <Card title="Updates per second">
        {readings > 2 ? (
          <Chart label={`Updates per second in the last minute, now ${double(updates.at(-1), 3)}`} x={times} y={updates} axis="time" height={130} fromZero shape="steps" />
        ) : (
          <p class="soft">The curve begins in a few seconds.</p>
        )}
      </Card>
      <Card title="p99 of requests">
        {readings > 2 ? (
          <Chart
            label={`99 of 100 requests were faster than this in the last minute, now ${span((p99.at(-1) ?? 0) * 1000)}`}
            x={times}
            y={p99}
            axis="time"
            height={130}
            format={(seconds) => span(seconds * 1000)}
            fromZero
          />
        ) : (
          <p class="soft">The curve begins in a few seconds.</p>
        )}
      </Card>
    </div>
  );
}
