//go:build slow && linux

package attacks

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// answerWithin is the time for the answer of a hostile model.
const answerWithin = 45 * time.Second

// trainScript is the trainer of the attack: its model is a file of its folder.
const trainScript = `cp "$TIDEMILL_KEY.onnx" "$TIDEMILL_OUT/model.onnx"
echo '{"accuracy": 1}' > "$TIDEMILL_OUT/metrics.json"
`

// Whatever file a run makes, the process stays up, its memory stays within the budget, and other models are
// loaded and answer.
func TestHostileModels(t *testing.T) {
	if os.Getenv("TIDEMILL_ONNXRUNTIME") == "" {
		t.Log("without TIDEMILL_ONNXRUNTIME the endless loops are not run: the built-in engine refuses them")
	}
	hostile := hostileModels()
	hostile["another-good"] = hostile["good"] + "\x12\x01b" // its bytes differ, by the name of its producer
	files := map[string]string{"models/train.sh": trainScript}
	for key, file := range hostile {
		files["models/"+key+".onnx"] = file
	}
	w := openWorld(t, files)
	w.run("data", "put", "models", "models", "--data", "data") // as data they are bytes
	keys := slices.Sorted(maps.Keys(hostile))
	w.within("the models", func() {
		w.trains(keys)
		w.serves("good", "after the runs")
		w.hostileTensors("good")
		w.askAll(keys)
		// This model has not been loaded before. The endless models must not hold all places of the loader.
		w.serves("another-good", "after the hostile models")
	})
}

// trains runs the recipe for all keys, and waits until the runs have ended.
func (w *world) trains(keys []string) {
	w.Helper()
	body, err := json.Marshal(map[string]any{"recipe": "intent", "keys": keys})
	if err != nil {
		w.Fatal(err)
	}
	if a := w.do(w.request(http.MethodPost, "/api/v1/runs", string(body), "operator", "content-type", "application/json")); a.status != http.StatusOK {
		w.Fatalf("start the runs: %d %s", a.status, a.body)
	}
	w.waitFor(func() bool {
		var page struct {
			Runs []struct{ State string }
		}
		a := w.do(w.request(http.MethodGet, "/api/v1/runs?recipe=intent&limit=1000", "", "reader"))
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			w.Fatalf("%v in %d %.300s", err, a.status, a.body)
		}
		ended := 0
		for _, r := range page.Runs {
			if r.State == "succeeded" || r.State == "failed" {
				ended++
			}
		}
		return ended >= len(keys)
	})
}

// askModel asks a model for some rows.
func (w *world) askModel(key string, rows int) answer {
	w.Helper()
	numbers := strings.TrimSuffix(strings.Repeat("1,", rows), ",")
	body := fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"FP32","shape":[%d,1],"data":[%s]}]}`, rows, numbers)
	return w.do(w.request(http.MethodPost, "/v2/models/intent/"+key+"/infer", body, "reader", "content-type", "application/json"))
}

// hostileTensors asks a good model with bodies that claim more than they have, or that grow when they are unpacked.
func (w *world) hostileTensors(key string) {
	w.Helper()
	binary := func(shape, size string) string {
		return `{"inputs":[{"name":"x","datatype":"FP32","shape":[` + shape + `,1],"parameters":{"binary_data_size":` + size + `}}]}`
	}
	data := func(shape, data string) string {
		return `{"inputs":[{"name":"x","datatype":"FP32","shape":[` + shape + `,1],"data":` + data + `}]}`
	}
	plain := data("1", "[1]")
	for name, c := range map[string]struct {
		body    string
		headers []string
	}{
		"a packed flood":             {zipped(), []string{"content-encoding", "gzip"}},
		"what is not packed":         {plain, []string{"content-encoding", "deflate"}},
		"a header beyond the body":   {plain, []string{"inference-header-content-length", "9223372036854775807"}},
		"a negative header":          {plain, []string{"inference-header-content-length", "-1"}},
		"a tensor beyond the body":   {binary("1", "4"), []string{"inference-header-content-length", strconv.Itoa(len(binary("1", "4")))}},
		"a tensor of all memory":     {binary("9000000000000000", "9007199254740991"), []string{"inference-header-content-length", strconv.Itoa(len(binary("9000000000000000", "9007199254740991")))}},
		"a shape of all memory":      {data("4611686018427387904", "[1]"), nil},
		"lists in lists":             {data("1", deep(50_000)), nil},
		"a number without an end":    {data("1", "["+strings.Repeat("1", 1<<20)+"]"), nil},
		"an exponent without an end": {data("1", "[1e"+strings.Repeat("9", 1<<20)+"]"), nil},
	} {
		a := w.must(name, w.request(http.MethodPost, "/v2/models/intent/"+key+"/infer", c.body, "reader", append(c.headers, "content-type", "application/json")...), http.StatusServiceUnavailable)
		if a.status < http.StatusBadRequest {
			w.Errorf("%s: %d %.300s", name, a.status, a.body)
		}
	}
}

// askAll asks all models at once, each several times.
func (w *world) askAll(keys []string) {
	w.Helper()
	const times, rows = 6, 200
	var work sync.WaitGroup
	for _, key := range keys {
		for range times {
			work.Go(func() {
				began := time.Now()
				for _, path := range []string{"/v2/models/intent/" + key, "/v2/models/intent/" + key + "/versions/1/ready", "/api/v1/model?model=intent/" + key} {
					w.do(w.request(http.MethodGet, path, "", "reader"))
				}
				a := w.askModel(key, rows)
				if took := time.Since(began); a.status == 0 || a.status == http.StatusInternalServerError || took > answerWithin {
					w.Errorf("the model %s answered %d after %s: %.300s", key, a.status, took.Round(time.Millisecond), a.body)
				}
			})
		}
	}
	work.Wait()
}

// serves fails the test unless a good model is judged and answers.
func (w *world) serves(key, when string) {
	w.Helper()
	var a answer
	if !waits(startWithin, func() bool {
		a = w.askModel(key, 1)
		return a.status == http.StatusOK
	}) {
		w.Errorf("%s: the model %s answers %d %.300s", when, key, a.status, a.body)
	}
}
