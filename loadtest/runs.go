package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"tidemill.dev/loadtest/internal/task"
)

const (
	runSlots  = 8
	runsPaced = 20 // events per second, so few that the machine is idle at each event
)

// runsMeasured has the time from an event to the start of its command, and the number of runs per
// second on a laptop.
type runsMeasured struct {
	paced         int
	begin         sample        // time from an event's publishing to its command's start
	hop, fork     sample        // lower bounds of begin: a bare hop, and a bare fork and exec
	runs          int           // number of runs that were requested at once
	took          time.Duration // time until all runs had ended
	bare          time.Duration // time for as many bare processes
	doubled, lost int           // number of keys with more than one run, and number of keys without a run
	weighs        task.Result   // memory of the laptop after all runs
	data          dataMeasured
}

func (r *runner) runs(ctx context.Context, self, folder string) (m runsMeasured, err error) {
	dir := filepath.Join(folder, "laptop")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return m, err
	}
	roll, err := openRoll(folder)
	if err != nil {
		return m, err
	}
	defer roll.close()
	program := filepath.Join(folder, "trainer")
	if err := buildProgram(ctx, "trainer", program); err != nil {
		return m, err
	}
	arg, err := json.Marshal(laptopTask{Dir: dir, Config: runsConfig(program, roll.path), Profile: r.profile})
	if err != nil {
		return m, err
	}
	up, err := startServer(ctx, []string{self, roleLaptop}, string(arg))
	if err != nil {
		return m, err
	}
	l := &laptopBench{runner: r, trainer: program, url: "http://" + up.addrs[0], roll: roll, up: up}
	if err = l.measure(ctx, &m); err == nil {
		m.data, err = l.measureDataPut(ctx, folder)
	}
	return m, errors.Join(err, up.stop())
}

func runsConfig(program, socket string) string {
	return fmt.Sprintf(`version: 1
pools: {default: {slots: %d}}
recipes:
  quick:
    when: {type: bot-created}
    run: {dir: ., command: [%q, %q]}
`, runSlots, program, socket)
}

type laptopBench struct {
	*runner
	trainer, url string
	roll         *startTimes
	up           *childServer
}

func (l *laptopBench) measure(ctx context.Context, m *runsMeasured) (err error) {
	m.paced, m.runs = l.seconds*runsPaced, l.bots
	if m.hop, err = hop(ctx, l.seconds*latencyRate/10); err != nil {
		return err
	}
	if m.fork, err = l.measureForks(ctx, m.paced); err != nil {
		return err
	}
	if m.begin, err = l.measureStarts(ctx, m.paced); err != nil {
		return err
	}
	if m.bare, err = forkExec(ctx, l.trainer, l.roll.path, m.runs, max(runSlots, runtime.NumCPU())); err != nil {
		return err
	}
	if m.took, err = l.publishAtOnce(ctx, m.runs); err != nil {
		return err
	}
	for i := range m.runs {
		switch n := len(l.roll.trainerStarts(crowdKey(i))); {
		case n == 0:
			m.lost++
		case n > 1:
			m.doubled++
		}
	}
	m.weighs, err = l.up.memoryUse()
	return err
}

// measureForks measures a bare fork and exec until the trainer runs, at the pace of the events.
func (l *laptopBench) measureForks(ctx context.Context, n int) (sample, error) {
	return l.measurePaced(ctx, n, "fork", func(key string) error { return trainer(ctx, l.trainer, l.roll.path, key) })
}

// measureStarts measures the time from an event's publishing to its command's start.
func (l *laptopBench) measureStarts(ctx context.Context, n int) (sample, error) {
	return l.measurePaced(ctx, n, "paced", func(key string) error { return l.publish(ctx, key) })
}

// measurePaced calls do for each key, at a pace, and measures until the key's trainer reports that
// it runs.
func (l *laptopBench) measurePaced(ctx context.Context, n int, name string, do func(key string) error) (sample, error) {
	before := l.roll.keys()
	sent := make([]time.Time, n)
	tick := time.NewTicker(time.Second / runsPaced)
	defer tick.Stop()
	for i := range n {
		sent[i] = time.Now()
		if err := do(fmt.Sprintf("%s-%d", name, i)); err != nil {
			return nil, err
		}
		<-tick.C
	}
	waiting, cancel := context.WithTimeout(ctx, crowdWithin)
	defer cancel()
	if err := l.roll.waitForKeys(waiting, before+n); err != nil {
		return nil, err
	}
	took := make(sample, n)
	for i := range n {
		took[i] = l.roll.trainerStarts(fmt.Sprintf("%s-%d", name, i))[0].Sub(sent[i])
	}
	return took.sorted(), nil
}

func (l *laptopBench) publish(ctx context.Context, key string) error {
	return l.post(ctx, "application/cloudevents+json", []byte(botCreated(key)))
}

func botCreated(key string) string {
	return fmt.Sprintf(`{"specversion": "1.0", "type": "bot-created", "source": "/loadtest", "id": %q, "subject": %q}`, key, key)
}

func (l *laptopBench) post(ctx context.Context, kind string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/events", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= http.StatusMultipleChoices {
		return fmt.Errorf("publish: %s", res.Status)
	}
	return nil
}

const (
	crowdBatch  = 500
	crowdWithin = 10 * time.Minute
)

func crowdKey(i int) string { return fmt.Sprintf("bot-%d", i) }

// publishAtOnce publishes n bots at once, and waits until all of their runs have ended.
func (l *laptopBench) publishAtOnce(ctx context.Context, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, crowdWithin)
	defer cancel()
	before, began := l.roll.keys(), time.Now()
	for from := 0; from < n; from += crowdBatch {
		var events []string
		for i := from; i < min(n, from+crowdBatch); i++ {
			events = append(events, botCreated(crowdKey(i)))
		}
		if err := l.post(ctx, "application/cloudevents-batch+json", []byte("["+strings.Join(events, ",")+"]")); err != nil {
			return 0, err
		}
	}
	if err := l.roll.waitForKeys(ctx, before+n); err != nil {
		return 0, err
	}
	return time.Since(began), l.waitAllEnded(ctx)
}

// waitAllEnded waits until no run is waiting or under way.
func (l *laptopBench) waitAllEnded(ctx context.Context) error {
	for {
		var page struct{ Runs []json.RawMessage }
		if err := l.get(ctx, "/api/v1/runs?state=waiting,running,retrying,committing&limit=1", &page); err != nil {
			return err
		}
		if len(page.Runs) == 0 {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("a run has not ended: %s: %w", page.Runs[0], context.Cause(ctx))
		}
	}
}

func (l *laptopBench) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(to)
}

// The bars of runs.
const (
	beginBar     = 20 * time.Millisecond  // median time from published to started
	beginLateBar = 100 * time.Millisecond // 99th percentile of the same
	runsBar      = 150                    // runs per second
	forkBar      = 0.3                    // share of bare processes per second
	laptopBar    = 400e6                  // resident bytes
)

func (t *table) runs(m *runsMeasured) {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "event published to command started, at %d events/s, %d events\tp50\tp99\tmax\n", runsPaced, m.paced)
	row := func(name string, s sample) {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", name, micros(s.quantile(0.5)), micros(s.quantile(0.99)), micros(s.quantile(1)))
	}
	row("tidemill up", m.begin)
	row("bare fork and exec of the same command", m.fork)
	row("bare loopback hop", m.hop)
	w.Flush()
	p50, p99 := m.begin.quantile(0.5), m.begin.quantile(0.99)
	fmt.Fprintf(t.w, "  p50 ≤ %s: %s · p99 ≤ %s: %s\n\n", beginBar, t.verdict(p50 <= beginBar), beginLateBar, t.verdict(p99 <= beginLateBar))

	rate, bare := float64(m.runs)/m.took.Seconds(), float64(m.runs)/m.bare.Seconds()
	fmt.Fprintf(t.w, "%d bots created at once, %d slots: each exactly one run: %s\n", m.runs, runSlots, t.verdict(m.lost == 0 && m.doubled == 0))
	fmt.Fprintf(t.w, "  %.0f runs/s beside %.0f bare processes/s; bar ≥ %d/s: %s · ratio %.2f; bar ≥ %.1f: %s\n", rate, bare, runsBar, t.verdict(rate >= runsBar),
		rate/bare, forkBar, t.verdict(rate/bare >= forkBar))
	fmt.Fprintf(t.w, "  the laptop's process: %.0f MB resident; bar < %.0f MB: %s\n\n", float64(m.weighs.Resident)/1e6, laptopBar/1e6, t.verdict(float64(m.weighs.Resident) < laptopBar))
	t.data(&m.data)
}
