package platform

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/internal/scoring/infer"
)

// The Open Inference Protocol with real models: the champion, a version by its number, and unknown
// models.
func TestInference(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.promoteModel("intent/bot-1", 2, 1, twoLabels(false))
	w.promoteModel("intent/bad", 1, 0, []byte("no model"))
	server := httptest.NewServer(w.inferenceHandler())
	t.Cleanup(server.Close)
	ask := func(method, path, body string) (int, map[string]any) {
		t.Helper()
		req, err := http.NewRequestWithContext(w.ctx(), method, server.URL+path, strings.NewReader(body))
		w.must(err)
		res, err := http.DefaultClient.Do(req)
		w.must(err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		w.must(err)
		var answer map[string]any
		w.must(json.Unmarshal(text, &answer))
		return res.StatusCode, answer
	}
	object := func(text string) (o map[string]any) {
		t.Helper()
		w.must(json.Unmarshal([]byte(text), &o))
		return o
	}
	const question = `{"id":"42","inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,0],[0,0]]}],"outputs":[{"name":"likely"}]}`
	for path, version := range map[string]string{"/v2/models/intent/bot-1/infer": "2", "/v2/models/intent/bot-1/versions/1/infer": "1"} {
		status, a := ask("POST", path, question)
		outputs, _ := a["outputs"].([]any)
		if status != http.StatusOK || a["model_name"] != "intent/bot-1" || a["model_version"] != version || a["id"] != "42" || len(outputs) != 1 {
			t.Fatalf("%s: %d %v", path, status, a)
		}
		out := outputs[0].(map[string]any)
		data := out["data"].([]any)
		first := data[0].(float64) > 0.99
		if out["datatype"] != "FP32" || !reflect.DeepEqual(out["shape"], []any{2.0, 2.0}) || len(data) != 4 || first != (version == "1") || data[2] != 0.5 {
			t.Errorf("%s: %v", path, out)
		}
	}
	for path, want := range map[string]string{
		"/v2/health/live":                          `{"live":true}`,
		"/v2/health/ready":                         `{"ready":true}`,
		"/v2/models/intent/bot-1/ready":            `{"name":"intent/bot-1","ready":true}`,
		"/v2/models/intent/bot-1/versions/1":       `{"name":"intent/bot-1","versions":["1"],"platform":"onnx_onnxv1","inputs":[{"name":"x","datatype":"FP32","shape":[-1,2]}],"outputs":[{"name":"likely","datatype":"FP32","shape":[-1,2]}]}`,
		"/v2/models/intent/bot-1/versions/2/ready": `{"name":"intent/bot-1","ready":true}`,
	} {
		if status, a := ask("GET", path, ""); status != http.StatusOK || !reflect.DeepEqual(a, object(want)) {
			t.Errorf("%s: %d %v", path, status, a)
		}
	}
	for path, want := range map[string]int{"/v2/models/intent/bot-7": 404, "/v2/models/intent/bot-1/versions/9": 404, "/v2/models/Intent": 404, "/v2/models/intent/bad": 500, "/v2/models/intent/bad/ready": 500} {
		if status, a := ask("GET", path, ""); status != want || a["error"] == "" {
			t.Errorf("%s: %d %v", path, status, a)
		}
	}
	// The files of a version cannot be read now: another request may get them.
	w.fact(tidemill.TypeModelRegistered, "intent/away", "run-1", tidemill.ModelRegistered{Artifact: strings.Repeat("0", 64), Judge: tidemill.Judge{Keep: 3}, Origin: tidemill.Origin{Run: "run-1", Recipe: "intent"}})
	w.fact(tidemill.TypeModelPromotionProposed, "intent/away", "", tidemill.PromotionProposed{Action: tidemill.ActionPromote, Version: 1, Force: true})
	if status, a := ask("GET", "/v2/models/intent/away/versions/1", ""); status != http.StatusServiceUnavailable || !strings.Contains(fmt.Sprint(a["error"]), "not in the store") {
		t.Errorf("a version whose files are away: %d %v", status, a)
	}
	if status, a := ask("POST", "/v2/models/intent/bot-1/infer", `{"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","data":[1,2,3]}]}`); status != http.StatusBadRequest || !strings.Contains(a["error"].(string), "shape") {
		t.Errorf("%d %v", status, a)
	}
	const many = 1<<20 + 1 // too many rows for one answer
	large := `{"inputs":[{"name":"x","shape":[` + strconv.Itoa(many) + `,2],"datatype":"FP32","data":[1` + strings.Repeat(",1", 2*many-1) + `]}]}`
	if status, a := ask("POST", "/v2/models/intent/bot-1/infer", large); status != http.StatusRequestEntityTooLarge || !strings.Contains(a["error"].(string), "fewer rows") {
		t.Errorf("%d rows: %d %.100v", many, status, a)
	}
}

// The index has the models with a champion, and which of them are in memory. An unloaded model is loaded by
// the next request.
func TestTheRepositoryOfModels(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	w.promoteModel("intent/bot-2", 1, 0, twoLabels(false))
	handler := w.inferenceHandler()
	post := func(path, body string) (int, string) {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(w.ctx(), "POST", path, strings.NewReader(body)))
		return answer.Code, strings.TrimSpace(answer.Body.String())
	}
	const one, two = `{"name":"intent/bot-1","version":"1","state":"READY","reason":""}`,
		`{"name":"intent/bot-2","version":"1","state":"UNAVAILABLE","reason":"not in memory: the first request loads it"}`
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v2/repository/index", `{"ready":true}`, 200, "[]"},
		{"/v2/repository/models/intent/bot-1/load", `{}`, 200, "{}"},
		{"/v2/repository/index", "", 200, "[" + one + "," + two + "]"},
		{"/v2/repository/index", `{"ready":true}`, 200, "[" + one + "]"},
		{"/v2/repository/models/intent/bot-1/unload", `{"parameters":{"unload_dependents":false}}`, 200, "{}"},
		{"/v2/repository/index", `{"ready":true}`, 200, "[]"},
		{"/v2/repository/models/intent/bot-2/unload", "", 200, "{}"}, // is not in memory
		{"/v2/repository/models/intent/no/unload", "", 404, ""},
		{"/v2/repository/models/intent/no/load", "", 404, ""},
		{"/v2/models/intent/bot-1/infer", `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[0,0]}]}`, 200,
			`{"model_name":"intent/bot-1","model_version":"1","outputs":[{"name":"likely","shape":[1,2],"datatype":"FP32","data":[0.5,0.5]}]}`},
		{"/v2/repository/index", `{"ready":true}`, 200, "[" + one + "]"},
	} {
		if status, body := post(c.path, c.body); status != c.status || c.want != "" && body != c.want {
			t.Errorf("%s with %s: %d %s, want %d %s", c.path, c.body, status, body, c.status, c.want)
		}
	}
}

// A request with binary tensors, compressed, as Triton's client sends it.
func TestInferenceInBinary(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	const head = `{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}],"outputs":[{"name":"likely","parameters":{"binary_data":true}}]}`
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err := z.Write(append([]byte(head), make([]byte, 8)...))
	w.must(errors.Join(err, z.Close()))
	r := httptest.NewRequestWithContext(w.ctx(), "POST", "/v2/models/intent/bot-1/infer", &packed)
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	r.Header.Set("Content-Encoding", "gzip")
	answer := httptest.NewRecorder()
	w.inferenceHandler().ServeHTTP(answer, r)
	const want = `{"model_name":"intent/bot-1","model_version":"1","outputs":[{"name":"likely","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}`
	if got := answer.Body.String(); answer.Code != http.StatusOK || got != want+"\x00\x00\x00\x3f\x00\x00\x00\x3f" || answer.Header().Get("Inference-Header-Content-Length") != strconv.Itoa(len(want)) {
		t.Errorf("%d %v %q", answer.Code, answer.Header(), got)
	}
}

// noRoom is a budget without room.
type noRoom struct{}

func (noRoom) Take(int64) error { return infer.ErrNoRoom }

func TestInferenceWithoutRoomIsAskedAgain(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\n")
	w.promoteModel("intent/bot-1", 1, 0, twoLabels(true))
	r := httptest.NewRequestWithContext(infer.WithBudget(w.ctx(), noRoom{}), "POST", "/v2/models/intent/bot-1/infer",
		strings.NewReader(`{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,0]}]}`))
	answer := httptest.NewRecorder()
	w.inferenceHandler().ServeHTTP(answer, r)
	if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") == "" || !strings.Contains(answer.Body.String(), "no memory is left") {
		t.Errorf("%d %v %s", answer.Code, answer.Header(), answer.Body)
	}
}

// The config's engine holds for requests that name a model.
func TestInferenceUsesTheEngineOfTheConfig(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, "version: 1\nengine: go\n")
	w.promoteModel("intent/strange", 1, 0, bytes.ReplaceAll(twoLabels(true), []byte("Softmax"), []byte("Strange"))) // no operator of the Go engine
	answer := httptest.NewRecorder()
	w.inferenceHandler().ServeHTTP(answer, httptest.NewRequestWithContext(w.ctx(), "GET", "/v2/models/intent/strange", nil))
	if answer.Code != http.StatusInternalServerError || !strings.Contains(answer.Body.String(), "set the engine to auto or onnxruntime") {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
}
