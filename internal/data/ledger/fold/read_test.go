package fold

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
)

// The quick reader gives the same values as encoding/json, and the same bytes when the plan
// is encoded again. It can read all facts that we write.
func TestReadingAgreesWithJSON(t *testing.T) {
	for _, c := range readings() {
		if !agrees[tidemill.RunRequested](t, c.text) && !agrees[tidemill.RunStarted](t, c.text) && !agrees[finishedFact](t, c.text) && c.quick {
			t.Errorf("%s is not read quickly", c.text)
		}
	}
}

// readingCase is a text, and whether the quick reader must be able to read it.
type readingCase struct {
	text  string
	quick bool
}

func readings() (all []readingCase) {
	for _, v := range []any{
		tidemill.RunRequested{}, tidemill.RunStarted{}, tidemill.RunFinished{}, wholeRequest(), wholeStart(), wholeFinish(),
		tidemill.RunRequested{Config: "ü\u2028<&>\"\\\n\x01\U0001F600", Events: []json.RawMessage{}},
		tidemill.RunFinished{Result: tidemill.Result{Metrics: map[string]float64{}, GPUSeconds: 1e-9, PeakMemory: -1}},
	} {
		text, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		all = append(all, readingCase{string(text), true})
	}
	for _, text := range []string{
		``, `null`, `{`, `{}`, `{} `, ` {}`, `{}{}`, `[]`, `{"attempt":1,}`, `{,"attempt":1}`, `{"attempt":1 }`, `{"attempt":01}`, `{"attempt":-0}`, `{"attempt":-}`, `{"attempt":1.0}`,
		`{"attempt":1e2}`, `{"attempt":9223372036854775807}`, `{"attempt":9223372036854775808}`, `{"attempt":null}`, `{"attempt":"1"}`, `{"Attempt":1}`, `{"attempt":1,"attempt":2}`,
		`{"att\u0065mpt":1}`, `{"what":1}`, `{"attempt":1,"seen":2,"plan":null}`, `{"attempt":1,"causes":2,"seen":2}`, `{"plan":{"command":["a"],"inputs":[{"name":"x"}]},"plan":{"inputs":[{"tree":"t"}]}}`,
		`{"plan":{"command":[]}}`, `{"plan":{"command":null,"env":{},"judge":null}}`, `{"plan":{"command":[,]}}`, `{"plan":{"env":{"a":"b","a":"c"}}}`, `{"plan":{"env":{"a":null}}}`,
		`{"plan":{"inputs":[null]}}`, `{"plan":{"inside":{"user":0,"volumes":[{"at":"/x"}]},"servers":{"count":1,"COUNT":2}}}`, `{"plan":{"cpu":1.5e3}}`, `{"plan":{"cpu":1e999}}`, `{"plan":{"cpu":.5}}`, `{"plan":{"cpu":1.}}`,
		`{"node":"` + "\xff" + `"}`, `{"node":"\ud800"}`, `{"node":"\x"}`, `{"node":"a` + "\n" + `"}`, `{"node":"\"}`, `{"gpus":[1,2],"gpus":[3]}`,
		`{"metrics":{"a":1,"b":-2.5E-3,"a":2}}`, `{"metrics":{"a":NaN}}`, `{"metrics":null}`, `{"candidate":{"model":"m","x":[1,{"y":null}],"z":"\n"}}`, `{"candidate":{"x":tru}}`, `{"candidate":"\u12"}`,
		`{"events":[null]}`, `{"events":[{"a":"\q"}]}`, `{"events":[{"a": 1}, "x"]}`, `{"events":null}`, `{"cause":{"source":"a"},"cause":{"id":"b"}}`, `{"cause":null}`,
		`{"permanent":true,"cut":false}`, `{"permanent":truely}`, `{"candidate":` + strings.Repeat("[", 300) + strings.Repeat("]", 300) + `}`,
	} {
		all = append(all, readingCase{text, false})
	}
	return all
}

func wholeRequest() tidemill.RunRequested {
	return tidemill.RunRequested{Cause: tidemill.Cause{Source: "/crm", ID: "1"}, Events: []json.RawMessage{json.RawMessage(`{"id":"1","data":{"n":[1,2.5,true,null]}}`)},
		Debounce: time.Second, MaxWait: time.Minute, Delay: time.Hour, Priority: -3, Again: "run", Config: "abc"}
}

func wholeStart() tidemill.RunStarted {
	user := int64(7)
	return tidemill.RunStarted{Attempt: 1, Causes: 3, Seen: 12, MAC: "mac", Where: wholeWhere(), Plan: &tidemill.Plan{Team: "chat", Image: "i", Dir: "/d", Command: []string{"python", "-c", "print(\"<&>\")"},
		Env: map[string]string{"B": "2", "A": "ä"}, Secrets: map[string]string{"K": "a/b"}, CPU: 0.5, Memory: 1 << 40, GPUs: 2, Pool: "gpu", Priority: 1,
		Deadline: time.Hour, Grace: time.Second, Attempts: 3, Backoff: tidemill.Backoff{First: time.Second, Cap: time.Minute},
		Inputs: []tidemill.Input{{Name: "x", Dataset: "d", Branch: "b", Commit: "c", Tree: "t", Files: 1, Bytes: 2}, {Name: "y", URI: "https://x", Allow: []string{"https://x"}}},
		Model:  "m", Judge: &tidemill.Judge{Gate: []string{"metrics.a >= 1"}, On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 10}, Champion: &tidemill.Champion{Version: 1, Artifact: "a"},
		Dataset: "o", Branch: "main", MaxOutput: 1, MaxLog: 2, Workers: 2, Servers: &tidemill.Servers{Count: 1, Command: []string{"ps"}},
		Inside: tidemill.Inside{User: &user, PullSecrets: []string{"p"}, Volumes: []tidemill.Volume{{Claim: "c", At: "/v"}}}}}
}

func wholeWhere() tidemill.Where {
	return tidemill.Where{Node: "n", Card: "H200", Driver: "1", GPUs: []int{0, 1}, Image: "sha256:1", ResumedFrom: "t"}
}

func wholeFinish() tidemill.RunFinished {
	return tidemill.RunFinished{Attempt: 2, Outcome: tidemill.OutcomeFailed, Reason: "no", Permanent: true, Saved: true, Candidate: &tidemill.Candidate{Model: "m"}, Where: wholeWhere(),
		Result: tidemill.Result{Exit: -1, Signal: "SIGKILL", PeakMemory: 5, GPUSeconds: 2.25, Stages: []tidemill.Stage{{Name: "run", Seconds: 0.1}}, Artifact: "a", Bytes: 1, Files: 2,
			Metrics: map[string]float64{"f1": 0.5, "loss": -1e-7}, LastLines: "a\nb\t\u00e9", LogBytes: 3, Cut: true}}
}

// agrees reports whether the quick reader read the text. It fails the test if the values
// differ from those of encoding/json.
func agrees[T any](t *testing.T, text string) (quick bool) {
	t.Helper()
	var have, want T
	q := reading{data: []byte(text)}
	quickReader(&have)(&q)
	quick = !q.over && q.at == len(text)
	if err := json.Unmarshal([]byte(text), &want); quick && (err != nil || !reflect.DeepEqual(have, want)) {
		t.Errorf("of %q into %T quickly:\n%+v\nby encoding/json:\n%+v, %v", text, want, have, want, err)
	}
	var either, again T
	err, bad := unmarshal([]byte(text), &either), json.Unmarshal([]byte(text), &again)
	if (err == nil) != (bad == nil) || err == nil && !reflect.DeepEqual(either, again) {
		t.Errorf("of %q into %T:\n%+v, %v\nby encoding/json:\n%+v, %v", text, again, either, err, again, bad)
	}
	return quick
}

// FuzzReading compares the quick reader with encoding/json for any text.
func FuzzReading(f *testing.F) {
	for _, c := range readings() {
		f.Add(c.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		agrees[tidemill.RunRequested](t, text)
		agrees[tidemill.RunStarted](t, text)
		agrees[finishedFact](t, text)
	})
}
