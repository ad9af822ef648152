package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// measureInfer measures every server at full speed and at the rate, round by round.
func (w *scoreBench) measureInfer(ctx context.Context, o *scoreOutcome) (absent map[string]string, err error) {
	if err := errors.Join(w.writeModels(), pinProcess(ctx, w.server.cmd.Process.Pid, 0, runtime.NumCPU()-1-w.Cores)); err != nil {
		return nil, err
	}
	all, err := w.inferServers(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stopServers(all)) }()
	for i, s := range all {
		if s.why != "" {
			continue
		}
		if s.start == nil {
			s.run = all[i-1].run
		}
		if s.start == nil && s.run == nil {
			s.why = all[i-1].why
		} else if err := s.open(ctx, w); err != nil {
			s.why = err.Error()
		}
		if s.why != "" && s.must {
			return nil, fmt.Errorf("%s: %s", s.name, s.why)
		}
	}
	for round := range w.scorePlan.rounds {
		for i := range all {
			s := all[(i+round)%len(all)]
			if s.why != "" {
				continue
			}
			if err := errors.Join(w.inferTurn(ctx, s, 0, &s.full), w.inferTurn(ctx, s, float64(w.Rate), &s.paced), s.checkAnswers(ctx, w)); err != nil {
				s.why = err.Error()
			}
			if s.why != "" && s.must {
				return nil, fmt.Errorf("%s: %s", s.name, s.why)
			}
		}
	}
	return w.tellInfer(o, all), nil
}

func stopServers(all []*inferServer) (err error) {
	for _, s := range all {
		if s.start != nil && s.run != nil {
			err = errors.Join(err, s.run.stop())
		}
	}
	return err
}

// inferConnections is the number of connections at full speed and at the rate.
const inferConnections = 16

func (w *scoreBench) inferTurn(ctx context.Context, s *inferServer, rate float64, into *inferTurns) error {
	t := load.Task{Addr: s.addr, Path: s.path(), Connections: inferConnections, Rate: rate, Warm: time.Second, Last: time.Duration(w.Seconds) * time.Second,
		Bodies: filepath.Join(w.folder, fmt.Sprintf("bodies-%d.json", s.form)), ContentType: s.contentType(), GRPC: s.form == formGRPC}
	var bodies [][]byte
	for _, b := range w.fleet.Bodies()[:inferBodies] {
		body, header := s.request(b.Row)
		bodies = append(bodies, body)
		if header != "" {
			t.Head = inferHeader + ": " + header + "\r\n"
		}
	}
	data, err := json.Marshal(bodies)
	if err == nil {
		err = os.WriteFile(t.Bodies, data, 0o644)
	}
	if err != nil {
		return err
	}
	r, spent, err := w.loadServer(ctx, t, s.run)
	if err != nil {
		return err
	}
	spent.Records, spent.Wall = r.Requests, r.Wall
	into.turns = append(into.turns, measuredTurn{Result: spent})
	into.p50, into.p99 = append(into.p50, milliseconds(r.P50)), append(into.p99, milliseconds(r.P99))
	return nil
}

// loadServer runs a generator on the other cores, and measures the server meanwhile.
func (w *scoreBench) loadServer(ctx context.Context, t load.Task, run *inferProcess) (r load.Result, spent task.Result, err error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return r, spent, err
	}
	g, err := startServer(ctx, []string{"taskset", "-c", coreList(0, runtime.NumCPU()-1-w.Cores), w.self, roleLoad}, string(arg))
	if err != nil {
		return r, spent, err
	}
	var line string
	if err = run.startMeasuring(); err == nil {
		line, err = g.ask("go")
	}
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	if err == nil {
		spent, err = run.stopMeasuring()
	}
	return r, spent, errors.Join(err, g.stop())
}

// The figures of servers, as budgets use them. A figure begins with the name of its row.
const (
	figureInferCPU  = ": CPU per request"
	figureInferP99  = ": p99 at the rate"
	figureInferRate = ": reached of the rate"
)

func (w *scoreBench) tellInfer(o *scoreOutcome, all []*inferServer) (absent map[string]string) {
	absent = map[string]string{}
	for _, s := range all {
		if s.why != "" {
			o.Notes = append(o.Notes, s.name+" was not measured: "+s.why)
			absent[s.name+figureInferCPU], absent[s.name+figureInferP99] = s.why, s.why
			continue
		}
		row := s.full.turns.row(s.name, strings.HasPrefix(s.name, nameInferOurs))
		row.P50, row.P99 = spreadOf(s.paced.p50).median, spreadOf(s.paced.p99).median
		o.Rows = append(o.Rows, row)
		o.Figures[s.name+figureInferCPU], o.Figures[s.name+figureInferP99] = row.CPU, row.P99
		reached := spreadOf(s.paced.turns.figures(measuredTurn.rate)).median
		o.Figures[s.name+figureInferRate] = reached / float64(w.Rate)
		o.Notes = append(o.Notes, fmt.Sprintf("%s at %d/s: %.0f/s were answered, p50 %.2f ms, p99 %.2f ms, CPU %.1f µs a request", s.name, w.Rate, reached, row.P50, row.P99,
			spreadOf(s.paced.turns.figures(cpuOf)).median))
	}
	return absent
}
