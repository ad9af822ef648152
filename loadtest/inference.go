package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"text/tabwriter"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/internal/ops/gctune"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/load"
	"tidemill.dev/loadtest/internal/scenario"
	"tidemill.dev/loadtest/internal/task"
)

// The bars of a request with 512 floats: CPU of the server's process, on one core.
const (
	jsonBar   = 70 * time.Microsecond
	binaryBar = 40 * time.Microsecond
	pacedBar  = 5 * time.Millisecond // 99th percentile of the answers at pacedRate
	pacedRate = 2000
)

// inferencePlan is the amount of work of `loadtest inference`.
type inferencePlan struct {
	rounds      int
	turn        time.Duration
	connections int
	beside      string
	profile     string
	only        string
}

// inferenceTask is the argument of a process that answers by the Open Inference Protocol.
type inferenceTask struct {
	Kafka, Redis, Store string
	Profile, What       string
}

// runInferenceServer runs a gateway that scores, wired like `tidemill serve gateway`.
func runInferenceServer(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) (err error) {
	var t inferenceTask
	if len(args) != 1 {
		return errors.New("inference server: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	conf, err := config.Parse("the load test's config", []byte("version: 1\n"))
	if err != nil {
		return err
	}
	p, err := platform.Open(ctx, platform.Options{Config: conf, OwnStreams: true,
		Addresses: config.Addresses{Kafka: t.Kafka, Redis: t.Redis, Store: t.Store}, Telemetry: &telemetry.Options{Version: "loadtest"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	door, err := p.Gateway(ctx, platform.GatewayOptions{Listen: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	go gctune.Keep(watched, 32<<20) // as `tidemill serve gateway` does
	served := make(chan error, 1)
	go func() { served <- door.Serve(ctx) }()
	fmt.Fprintln(stdout, door.Addr())
	err = serveCommands(stdin, stdout, task.Task{Do: roleInference + "-" + t.What, Profile: t.Profile})
	return errors.Join(err, door.Close(ctx), <-served)
}

// inferenceForm is a form of the same request.
type inferenceForm struct {
	name    string
	path    string
	headers string
	body    []byte
	rate    float64
	own     bool // form that an older build may not know
	bar     time.Duration
	late    time.Duration // bar of the 99th percentile
}

// inferenceForms returns the forms of a request with a row of numbers.
func inferenceForms(row []float32) []inferenceForm {
	var short, long, tail []byte
	for i, v := range row {
		if i > 0 {
			short, long = append(short, ','), append(long, ", "...)
		}
		short = strconv.AppendFloat(short, float64(v), 'g', -1, 32)
		long = strconv.AppendFloat(long, float64(v), 'g', -1, 64) // as Python's json writes an array of NumPy
		tail = binary.LittleEndian.AppendUint32(tail, math.Float32bits(v))
	}
	input := fmt.Sprintf(`{"inputs":[{"name":%q,"shape":[1,%d],"datatype":"FP32"`, fleet.Input, len(row))
	text := func(list []byte) []byte { return []byte(input + `,"data":[` + string(list) + `]}]}`) }
	head := input + `,"parameters":{"binary_data_size":` + strconv.Itoa(len(tail)) + `}}],"parameters":{"binary_data_output":true}}`
	path := "/v2/models/" + fleet.Model(0)
	const json = "Content-Type: application/json\r\n"
	return []inferenceForm{
		{name: "JSON", path: path + "/infer", headers: json, body: text(short), bar: jsonBar},
		{name: "JSON, 17 digits", path: path + "/infer", headers: json, body: text(long), bar: jsonBar},
		{name: "JSON, a version", path: path + "/versions/1/infer", headers: json, body: text(short), bar: jsonBar},
		{name: "JSON, 2000 a second", path: path + "/infer", headers: json, body: text(short), rate: pacedRate, late: pacedBar},
		{name: "binary", path: path + "/infer", own: true, bar: binaryBar, body: append([]byte(head), tail...),
			headers: "Content-Type: application/octet-stream\r\nInference-Header-Content-Length: " + strconv.Itoa(len(head)) + "\r\n"},
	}
}

// inferenceBench measures requests to one model.
type inferenceBench struct {
	inferencePlan
	w   *scoreBench
	row []float32
}

// inferenceMain runs `loadtest inference`.
func inferenceMain(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var p inferencePlan
	f := flag.NewFlagSet("loadtest inference", flag.ContinueOnError)
	f.IntVar(&p.rounds, "rounds", 3, "rounds of each form")
	f.DurationVar(&p.turn, "turn", 3*time.Second, "how long one turn is measured")
	f.IntVar(&p.connections, "connections", 16, "connections of the client")
	f.StringVar(&p.beside, "beside", "", "another build of this program, which is measured beside this one")
	f.StringVar(&p.profile, "profile", "", "folder for CPU and allocation profiles")
	f.StringVar(&p.only, "only", "", "only the form of this name")
	if err := f.Parse(args); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "tidemill-inference-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	s := &scenario.Scenario{Name: "inference", Models: 1, Network: fleet.Network{512, 64, 20}, Data: fleet.KindDigits, Keys: fleet.Evenly, Batch: 1}
	w, err := openWorld(ctx, scorePlan{self: self}, s, contenders{}, filepath.Join(folder, "world"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	if err := w.registerAll(ctx); err != nil {
		return err
	}
	b := &inferenceBench{inferencePlan: p, w: w, row: make([]float32, s.Network[0])}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range b.row {
		b.row[i] = r.Float32()
	}
	return b.run(ctx, stdout)
}

// run measures each form with each build in turn, round by round.
func (b *inferenceBench) run(ctx context.Context, stdout io.Writer) error {
	fmt.Fprintf(stdout, "a request with %d floats to a network of %v; one core for the server; CPU of the server's process\n", len(b.row), b.w.Network)
	out := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "form\tbuild\trequests/s\tCPU µs/request\tkernel\tallocs/request\tp50\tp99\tbar\n")
	builds := []string{b.w.self}
	if b.beside != "" {
		builds = append(builds, b.beside)
	}
	missed := false
	for _, form := range inferenceForms(b.row) {
		if b.only != "" && b.only != form.name {
			continue
		}
		all := make([][]serverMeasurement, len(builds))
		for range b.rounds {
			for i, build := range builds {
				if i > 0 && form.own {
					continue
				}
				s, err := b.measure(ctx, build, form)
				if err != nil {
					return fmt.Errorf("measure %s: %w", form.name, err)
				}
				all[i] = append(all[i], s)
			}
		}
		for i, some := range all {
			if len(some) > 0 {
				missed = b.printForm(out, form, i, some) || missed
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if missed {
		return errMissed
	}
	return nil
}

// printForm prints the row of a form and a build, and reports whether the bar was missed.
func (b *inferenceBench) printForm(out io.Writer, form inferenceForm, build int, all []serverMeasurement) (missed bool) {
	median := func(figure func(serverMeasurement) float64) float64 { return spreadOf(figures(all, figure)).median }
	cpu := median(func(s serverMeasurement) float64 { return s.perEvent(s.server.CPU) })
	p99 := median(func(s serverMeasurement) float64 { return float64(s.load.P99) })
	bar := ""
	switch {
	case build > 0:
	case form.bar > 0:
		missed = cpu > float64(form.bar.Microseconds())
		bar = fmt.Sprintf("≤ %d µs: %s", form.bar.Microseconds(), map[bool]string{true: "MISSED", false: "ok"}[missed])
	case form.late > 0:
		missed = p99 > float64(form.late)
		bar = fmt.Sprintf("p99 ≤ %s: %s", form.late, map[bool]string{true: "MISSED", false: "ok"}[missed])
	}
	fmt.Fprintf(out, "%s\t%s\t%.0f\t%.1f\t%.1f\t%.1f\t%s\t%s\t%s\n", form.name, []string{"this", "beside"}[build],
		median(func(s serverMeasurement) float64 { return float64(s.load.Requests) / s.load.Wall.Seconds() }), cpu,
		median(func(s serverMeasurement) float64 { return s.perEvent(s.server.System) }),
		median(func(s serverMeasurement) float64 { return float64(s.server.Mallocs) / float64(max(1, s.load.Requests)) }),
		medianRound(all, func(s serverMeasurement) time.Duration { return s.load.P50 }), micros(time.Duration(p99)), bar)
	return missed
}

// measure starts a server, checks its answer and sends requests.
func (b *inferenceBench) measure(ctx context.Context, build string, form inferenceForm) (s serverMeasurement, err error) {
	arg, err := json.Marshal(inferenceTask{Kafka: b.w.server.addrs[0], Redis: b.w.server.addrs[1], Store: b.w.storeURL(), Profile: b.profile, What: form.name})
	if err != nil {
		return s, err
	}
	server, err := startServer(ctx, []string{"env", "GOMAXPROCS=1", build, roleInference}, string(arg))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	if form.own {
		err = b.checkBinary(ctx, server.addrs[0], form)
	} else {
		err = b.checkJSON(ctx, server.addrs[0], form)
	}
	if err != nil {
		return s, err
	}
	arg, err = json.Marshal(load.Task{Addr: server.addrs[0], Path: form.path, Headers: form.headers, Body: form.body, Rate: form.rate,
		Connections: b.connections, Warm: time.Second, Last: b.turn})
	if err != nil {
		return s, err
	}
	g, _, err := startChild(ctx, []string{b.w.self, roleLoad}, string(arg))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, g.stop()) }()
	if err := server.startMeasuring(); err != nil {
		return s, err
	}
	line, err := g.ask("go")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(line), &s.load); err != nil {
		return s, err
	}
	s.server, err = server.stopMeasuring()
	return s, err
}

// ask sends one request and returns its answer.
func (f inferenceForm) ask(ctx context.Context, addr string) (http.Header, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+f.path, bytes.NewReader(f.body))
	if err != nil {
		return nil, nil, err
	}
	for line := range bytes.SplitSeq([]byte(f.headers), []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok {
			r.Header.Set(string(name), string(value))
		}
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", a.Status, body)
	}
	return a.Header, body, err
}

func (b *inferenceBench) checkJSON(ctx context.Context, addr string, form inferenceForm) error {
	_, body, err := form.ask(ctx, addr)
	if err != nil {
		return err
	}
	var a struct{ Outputs []struct{ Data []float32 } }
	if err := json.Unmarshal(body, &a); err != nil || len(a.Outputs) != 1 {
		return fmt.Errorf("the answer is %s, %w", body, err)
	}
	return b.check(a.Outputs[0].Data)
}

func (b *inferenceBench) checkBinary(ctx context.Context, addr string, form inferenceForm) error {
	header, body, err := form.ask(ctx, addr)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(header.Get("Inference-Header-Content-Length"))
	if err != nil {
		return fmt.Errorf("the answer is not binary: %s", body)
	}
	got := make([]float32, len(body[n:])/4)
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(body[n+4*i:]))
	}
	return b.check(got)
}

// check compares an answer with one that is computed in another way.
func (b *inferenceBench) check(got []float32) error {
	want := b.w.Network.Answers(fleet.Seed(0, 1), b.row)
	if len(got) != len(want) {
		return fmt.Errorf("the answer has %d numbers, want %d", len(got), len(want))
	}
	for i := range got {
		if math.Abs(float64(got[i])-want[i]) > 1e-5 {
			return fmt.Errorf("number %d of the answer is %v, want %v", i, got[i], want[i])
		}
	}
	return nil
}
