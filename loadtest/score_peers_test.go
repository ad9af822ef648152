package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// An input that a peer has committed must have an output, even if no later input has one.
func TestCommittedInputsMustHaveOutputs(t *testing.T) {
	w := toyWorld(4)
	a, err := w.newAudit()
	if err != nil {
		t.Fatal(err)
	}
	a.done[2] = 2
	a.output(scoredEvent(w, 0, 1))
	if a.isDone() {
		t.Error("the output of the second committed input is missing, and the audit is done")
	}
	a.findLost()
	if a.counts.lost != 1 || a.first == nil {
		t.Errorf("%+v: %v", a.counts, a.first)
	}
	a.output(scoredEvent(w, 1, 1))
	if !a.isDone() {
		t.Error("both committed inputs have outputs, and the audit is not done")
	}
}

func turnOf(rate float64) turns {
	return turns{{Result: task.Result{Records: int(rate), Wall: time.Second, CPU: time.Second, Resident: 100 << 20}, broker: time.Second, whole: int(rate)}}
}

// A peer that cannot be had is named, and its budget is absent rather than missed.
func TestPeersThatAreMissingAreNamed(t *testing.T) {
	o := &scoreOutcome{Figures: map[string]float64{}}
	absent := tellPeers(o, []*peer{{name: "Tidemill", ours: true, turns: turnOf(8000)}, {name: namePeerStreams, turns: turnOf(2000)}, {name: namePeerFlink, why: "no mvn"}})
	if len(o.Rows) != 2 || o.Figures[figurePeerRate+namePeerStreams] != 4 || o.Figures[figurePeerTimes+namePeerStreams] != 4 || o.Figures[figurePeerCPU] != 125 || o.Figures[figurePeerMemory] != 100 {
		t.Errorf("rows %+v, figures %v", o.Rows, o.Figures)
	}
	if absent[figurePeerRate+namePeerFlink] != "no mvn" || len(o.Notes) != 2 || !strings.Contains(o.Notes[1], "Flink, ONNX Runtime was not measured: no mvn") {
		t.Errorf("absent %v, notes %q", absent, o.Notes)
	}
}

func TestAPeerThatIsNotInstalled(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, name := range []string{"streams", "flink", "scorer", "mlserver", "kserve"} {
		if start, why := findInstalled(t.Context(), name, false); start != "" || why != name+" is not installed; give -fetch" {
			t.Errorf("%s is started with %q: %s", name, start, why)
		}
	}
	if start, why := findInstalled(t.Context(), "nothing", false); start != "" || !strings.Contains(why, "nothing was not installed") {
		t.Errorf("a program without files is started with %q: %s", start, why)
	}
}

func TestPinnedProcess(t *testing.T) {
	if _, err := exec.LookPath("taskset"); err != nil {
		t.Skip("this machine has no taskset")
	}
	p, err := startPinned([]string{"sh", "-c", "echo says this; read line; echo and ends"}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if use, err := task.ReadProcess(p.pid()); err != nil || use.Resident == 0 {
		t.Errorf("%+v: %v", use, err)
	}
	p.stop()
	p.stop()
	select {
	case <-p.ended:
	default:
		t.Error("it runs after stop")
	}
	p, err = startPinned([]string{"sh", "-c", "echo it broke >&2; exit 3"}, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	<-p.ended
	if p.said() != "it broke" {
		t.Errorf("it said %q", p.said())
	}
}

// inferAnswers is a server of the protocol that answers rightly, or with an error of a number.
func inferAnswers(t *testing.T, w *scoreBench, wrongBy float64) *inferServer {
	rows := map[string]int{}
	for i, b := range w.fleet.Bodies()[:inferBodies] {
		body, _ := (&inferServer{}).request(b.Row)
		rows[string(body)] = i
	}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body := make([]byte, r.ContentLength)
		if _, err := r.Body.Read(body); err != nil && err.Error() != "EOF" {
			t.Error(err)
		}
		at, ok := rows[string(body)]
		if !ok || r.URL.Path != "/v2/models/m/infer" {
			http.Error(rw, "another request", http.StatusBadRequest)
			return
		}
		var all []string
		for _, v := range w.fleet.Network.Answers(fleet.Seed(0, 1), w.fleet.Bodies()[at].Row) {
			all = append(all, strconv.FormatFloat(v+wrongBy, 'g', -1, 64))
		}
		fmt.Fprintf(rw, `{"outputs":[{"data":[%s]}]}`, strings.Join(all, ","))
	}))
	t.Cleanup(s.Close)
	return &inferServer{name: "a server", model: "m", addr: s.Listener.Addr().String()}
}

func TestAnswersOfServersAreChecked(t *testing.T) {
	w := toyWorld(1)
	if err := inferAnswers(t, w, 0).checkAnswers(t.Context(), w); err != nil {
		t.Error(err)
	}
	if err := inferAnswers(t, w, 0.01).checkAnswers(t.Context(), w); err == nil {
		t.Error("wrong answers pass")
	}
	refused := inferAnswers(t, w, 0)
	refused.form = formBinary
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := refused.open(ctx, w); err == nil || !strings.Contains(err.Error(), "400 Bad Request: another request") {
		t.Errorf("a form that the server refuses: %v", err)
	}
}

func TestBinaryTensors(t *testing.T) {
	body, header := (&inferServer{form: formBinary}).request([]float32{1, -2.5})
	all, err := binaryAnswer(header, body) // an answer has the same form
	if err != nil || len(all) != 2 || all[0] != 1 || all[1] != -2.5 {
		t.Errorf("%v of %q, whose JSON has %s bytes: %v", all, body, header, err)
	}
	if _, err := binaryAnswer("", body); err == nil {
		t.Error("an answer without the header passes")
	}
}

func TestMessagesOfGRPC(t *testing.T) {
	row := []float32{1, -2.5}
	request := (&inferServer{model: "a/b", form: formGRPC}).message(row)
	input := fieldOf(request, fieldInputs)
	if string(fieldOf(request, fieldModel)) != "a/b" || string(fieldOf(input, fieldName)) != fleet.Input || string(fieldOf(input, fieldShape)) != "\x01\x02" {
		t.Errorf("the request is %q", request)
	}
	if all := floatsOf(fieldOf(request, fieldRawInputs)); len(all) != 2 || all[0] != 1 || all[1] != -2.5 {
		t.Errorf("the request has the numbers %v", all)
	}
	bytes := func(number byte, value []byte) []byte {
		return append([]byte{number<<3 | 2, byte(len(value))}, value...)
	}
	for _, answer := range [][]byte{bytes(fieldRawOutputs, rawFloats(row)), bytes(fieldOutputs, bytes(fieldContents, bytes(fieldFloats, rawFloats(row))))} {
		if all := messageAnswer(append([]byte{3 << 3, 7}, answer...)); len(all) != 2 || all[1] != -2.5 {
			t.Errorf("the answer %q has the numbers %v", answer, all)
		}
	}
	if all := messageAnswer([]byte{0xff}); all != nil {
		t.Errorf("half a message has the numbers %v", all)
	}
}

// treeWalker is an engine that answers as the oracle does, or wrongly for one row in seven.
type treeWalker struct {
	oracle func([]float32) float64
	rows   int
	wrong  bool
}

func (w *treeWalker) Inputs() []tensor.Spec {
	return []tensor.Spec{{Type: tensor.Float, Shape: []int{tensor.Any, 3}}}
}

func (w *treeWalker) Outputs() []tensor.Spec { return make([]tensor.Spec, 1) }

func (w *treeWalker) Run(in, out []tensor.Tensor) error {
	out[0].Floats = nil
	for at := 0; at < len(in[0].Floats); at += 3 {
		v := w.oracle(in[0].Floats[at:][:3])
		if w.rows++; w.wrong && w.rows%7 == 0 {
			v++
		}
		out[0].Floats = append(out[0].Floats, float32(v))
	}
	return nil
}

func TestTreesAreChecked(t *testing.T) {
	trees := fleet.Trees{Count: 4, Depth: 3, Features: 3}
	for _, batch := range []int{1, 64, 2000} {
		for _, wrong := range []bool{false, true} {
			walker := &treeWalker{oracle: trees.Oracle(fleet.Seed(0, 1)), wrong: wrong}
			l := &inferLoop{models: []program{walker}, batch: batch, workers: make([]inferWorker, 1)}
			l.table(&fleet.Fleet{Models: 1, Network: fleet.Network{3, 1}, Kind: fleet.KindFloats})
			if err := l.checkTrees(&trees); (err != nil) != wrong {
				t.Errorf("batches of %d, wrong %t: %v", batch, wrong, err)
			}
			if !wrong && walker.rows < 1000 {
				t.Errorf("batches of %d: only %d rows were checked", batch, walker.rows)
			}
		}
	}
}
