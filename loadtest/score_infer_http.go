package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/task"
)

// inferServer is a server of the Open Inference Protocol with one model.
type inferServer struct {
	name   string
	model  string // path of the model there
	binary bool   // tensors in binary form
	start  []string
	why    string // reason that it is not measured
	addr   string
	run    *pinnedProcess // nil if it shares the process of another row

	full, paced inferTurns
}

type inferTurns struct {
	turns    turns
	p50, p99 []float64 // milliseconds
}

// The names of servers in the table.
const (
	nameInferJSON    = "Tidemill, JSON"
	nameInferVersion = "Tidemill, a version, JSON"
	nameInferBinary  = "Tidemill, binary tensors"
)

func (w *scoreBench) inferServers(ctx context.Context) ([]*inferServer, error) {
	all := []*inferServer{}
	for _, build := range []struct{ name, program string }{{"Tidemill", w.self}, {"Tidemill, the other build", w.scorePlan.beside}} {
		if build.program == "" {
			continue
		}
		s := &inferServer{name: build.name + ", JSON", model: fleet.Model(0), addr: freeAddr()}
		arg, err := json.Marshal(gatewayTask{Kafka: w.server.addrs[0], Redis: w.server.addrs[1], Store: w.storeURL(), Listen: s.addr, Stream: inStream, Dedupe: "off"})
		if err != nil {
			return nil, err
		}
		s.start = []string{build.program, roleGateway, string(arg)}
		all = append(all, s, &inferServer{name: build.name + ", a version, JSON", model: s.model + "/versions/1", addr: s.addr},
			&inferServer{name: build.name + ", binary tensors", model: s.model, addr: s.addr, binary: true})
	}
	for _, name := range w.Beside {
		s := &inferServer{name: map[string]string{"mlserver": "MLServer, JSON", "kserve": "KServe, JSON"}[name], model: fleet.Key(0), addr: freeAddr()}
		var python string
		python, s.why = findInstalled(ctx, name, w.fetch)
		_, port, err := net.SplitHostPort(s.addr)
		_, other, failed := net.SplitHostPort(freeAddr())
		if err := errors.Join(err, failed); err != nil {
			return nil, err
		}
		s.start = []string{python, filepath.Join(sourceFolder("peers"), "python", name+"_peer.py"), s.model, filepath.Join(w.modelFolder(), fleet.Key(0)+".onnx"), port, other}
		all = append(all, s)
	}
	return all, nil
}

// freeAddr returns an address of this machine that is free now.
func freeAddr() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0" // the server says that it cannot be used
	}
	defer l.Close()
	return l.Addr().String()
}

// inferBodies is the number of different requests.
const inferBodies = 16

// inferRequest returns a request for one row, and the further header of binary tensors.
func inferRequest(row []float32, inBinary bool) (body []byte, header string) {
	if !inBinary {
		body = fmt.Appendf(nil, `{"inputs":[{"name":%q,"shape":[1,%d],"datatype":"FP32","data":[`, fleet.Input, len(row))
		for i, v := range row {
			if i > 0 {
				body = append(body, ',')
			}
			body = strconv.AppendFloat(body, float64(v), 'g', -1, 32)
		}
		return append(body, "]}]}"...), ""
	}
	body = fmt.Appendf(nil, `{"inputs":[{"name":%q,"shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, fleet.Input, len(row), 4*len(row))
	header = strconv.Itoa(len(body))
	for _, v := range row {
		body = binary.LittleEndian.AppendUint32(body, math.Float32bits(v))
	}
	return body, header
}

func (s *inferServer) contentType() string {
	if s.binary {
		return "application/octet-stream"
	}
	return "application/json"
}

func (s *inferServer) path() string { return "/v2/models/" + s.model + "/infer" }

// inferHeader is the header with the size of the JSON before binary tensors.
const inferHeader = "Inference-Header-Content-Length"

// checkAnswers asks for every row, and compares the answers with those of plain arithmetic.
func (s *inferServer) checkAnswers(ctx context.Context, w *scoreBench) error {
	for i, b := range w.fleet.Bodies()[:inferBodies] {
		got, err := s.ask(ctx, b.Row)
		if err != nil {
			return err
		}
		want := w.fleet.Network.Answers(fleet.Seed(0, 1), b.Row)
		for at, v := range want {
			if len(got) != len(want) || math.Abs(got[at]-v) > tolerance {
				return fmt.Errorf("the answer to request %d is %v and should be %v", i, got, want)
			}
		}
	}
	return nil
}

func (s *inferServer) ask(ctx context.Context, row []float32) ([]float64, error) {
	body, header := inferRequest(row, s.binary)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.addr+s.path(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", s.contentType())
	if header != "" {
		req.Header.Set(inferHeader, header)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, &refusedInfer{res.StatusCode, fmt.Sprintf("the server answers %s: %.300s", res.Status, said)}
	}
	if s.binary {
		return binaryAnswer(res.Header.Get(inferHeader), said)
	}
	var a struct {
		Outputs []struct{ Data []float64 }
	}
	if err := json.Unmarshal(said, &a); err != nil || len(a.Outputs) == 0 {
		return nil, fmt.Errorf("the server answers %.300s: %w", said, err)
	}
	return a.Outputs[0].Data, nil
}

// binaryAnswer returns the numbers that follow an answer's JSON, whose size is in the header.
func binaryAnswer(header string, said []byte) (all []float64, err error) {
	n, err := strconv.Atoi(header)
	if err != nil || n > len(said) {
		return nil, fmt.Errorf("the server answers without tensors in binary: %.300s", said)
	}
	for raw := said[n:]; len(raw) >= 4; raw = raw[4:] {
		all = append(all, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
	}
	return all, nil
}

// refusedInfer is an answer with another status than 200.
type refusedInfer struct {
	status int
	said   string
}

func (r *refusedInfer) Error() string { return r.said }

// readyWithin is the time in which a server must answer. Python servers import much.
const readyWithin = 90 * time.Second

// open starts the server and waits until it answers rightly.
func (s *inferServer) open(ctx context.Context, w *scoreBench) (err error) {
	if s.start != nil {
		if s.run, err = startPinned(s.start, runtime.NumCPU()-w.Cores, runtime.NumCPU()-1); err != nil {
			return err
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(readyWithin); ; {
		err := s.checkAnswers(ctx, w)
		refused := (*refusedInfer)(nil)
		if err == nil || errors.As(err, &refused) && refused.status == http.StatusBadRequest || time.Now().After(until) {
			return err
		}
		select {
		case <-tick.C:
		case <-s.ended():
			return fmt.Errorf("it ended: %s", s.run.said())
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ended is nil, and so never ready, for a row that shares the process of another row.
func (s *inferServer) ended() chan struct{} {
	if s.run == nil {
		return nil
	}
	return s.run.ended
}

// measureInfer measures every server at full speed and at the rate, round by round.
func (w *scoreBench) measureInfer(ctx context.Context, o *scoreOutcome) (absent map[string]string, err error) {
	if err := errors.Join(w.writeModels(), pinProcess(ctx, w.server.cmd.Process.Pid, 0, runtime.NumCPU()-1-w.Cores)); err != nil {
		return nil, err
	}
	all, err := w.inferServers(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, s := range all {
			if s.run != nil {
				s.run.stop()
			}
		}
	}()
	process := map[string]*pinnedProcess{}
	for _, s := range all {
		if s.why == "" {
			if err := s.open(ctx, w); err != nil {
				s.why = err.Error()
			}
		}
		if s.run != nil {
			process[s.addr] = s.run
		}
	}
	if all[0].why != "" {
		return nil, fmt.Errorf("%s: %s", all[0].name, all[0].why)
	}
	for round := range w.scorePlan.rounds {
		for i := range all {
			s := all[(i+round)%len(all)]
			if s.why != "" {
				continue
			}
			if err := errors.Join(w.inferTurn(ctx, s, process[s.addr], 0, &s.full), w.inferTurn(ctx, s, process[s.addr], float64(w.Rate), &s.paced), s.checkAnswers(ctx, w)); err != nil {
				s.why = err.Error()
			}
		}
	}
	return w.tellInfer(o, all), nil
}

// inferConnections is the number of connections at full speed and at the rate.
const inferConnections = 16

func (w *scoreBench) inferTurn(ctx context.Context, s *inferServer, run *pinnedProcess, rate float64, into *inferTurns) error {
	t := load.Task{Addr: s.addr, Path: s.path(), Connections: inferConnections, Rate: rate, Warm: time.Second, Last: time.Duration(w.Seconds) * time.Second,
		Bodies: filepath.Join(w.folder, fmt.Sprintf("bodies-%t.json", s.binary)), ContentType: s.contentType()}
	var bodies [][]byte
	for _, b := range w.fleet.Bodies()[:inferBodies] {
		body, header := inferRequest(b.Row, s.binary)
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
	r, cpu, memory, err := w.loadServer(ctx, t, run)
	if err != nil {
		return err
	}
	into.turns = append(into.turns, measuredTurn{Result: task.Result{Records: r.Requests, Wall: r.Wall, CPU: cpu, Resident: memory}})
	into.p50, into.p99 = append(into.p50, milliseconds(r.P50)), append(into.p99, milliseconds(r.P99))
	return nil
}

// loadServer runs a generator on the other cores, and measures the server meanwhile.
func (w *scoreBench) loadServer(ctx context.Context, t load.Task, run *pinnedProcess) (r load.Result, cpu time.Duration, memory uint64, err error) {
	arg, err := json.Marshal(t)
	if err != nil {
		return r, 0, 0, err
	}
	g, err := startServer(ctx, []string{"taskset", "-c", coreList(0, runtime.NumCPU()-1-w.Cores), w.self, roleLoad}, string(arg))
	if err != nil {
		return r, 0, 0, err
	}
	before, err := task.ReadProcess(run.pid())
	var line string
	if err == nil {
		line, err = g.ask("go")
	}
	if err == nil {
		err = json.Unmarshal([]byte(line), &r)
	}
	after, failed := task.ReadProcess(run.pid())
	return r, after.CPU - before.CPU, after.Resident, errors.Join(err, failed, g.stop())
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
		row := s.full.turns.row(s.name, slices.Contains([]string{nameInferJSON, nameInferVersion, nameInferBinary}, s.name))
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
