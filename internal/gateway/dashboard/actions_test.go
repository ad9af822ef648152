package dashboard

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
)

// recordingAPI answers all actions, and records the bodies of their requests.
type recordingAPI struct {
	fakeAPI
	bodies []string
	keys   []string
}

func (f *recordingAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		f.bodies = append(f.bodies, string(body))
		f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
	}
	f.fakeAPI.ServeHTTP(w, r)
}

func openRecording(t testing.TB, answers fakeAPI) (*Dashboard, *recordingAPI) {
	t.Helper()
	answers["GET /api/v1/caller"] = everyRole()
	f := &recordingAPI{fakeAPI: answers}
	d := New(Options{API: f, Install: func() string { return "acme-lab" }, Now: testNow})
	return d, f
}

func submit(d *Dashboard, path string, form url.Values) string {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Body.String()
}

// The page of an action shows its dry run and its command, and changes nothing.
func TestActionShowsItsDryRun(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/runs/cancel": api.RunsDone{Runs: []api.RunDone{{Run: "r1", Recipe: "intent", Key: "bot-1", Done: "would be cancelled"}}}})
	body := fetch(d, "/ui/act/cancel-runs?recipe=intent&state=waiting&reason=it's+late").Body.String()
	mustHave(t, body, "would be cancelled", "tidemill runs cancel --recipe intent --state waiting --reason &#34;it&#39;s late&#34;", `formmethod="post"`)
	if len(f.bodies) != 1 || !strings.Contains(f.bodies[0], `"dryRun":true`) {
		t.Errorf("requests: %s", f.bodies)
	}
}

// An action is done once for each form, and its page offers what undoes it.
func TestActionIsDoneAndUndone(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/model/rollback": api.PromotionDone{Model: "intent/bot-1", Version: 2, Before: 3, Champion: 2, Done: "rolled back"}})
	form := url.Values{"model": {"intent/bot-1"}, "basis": {"3"}, "reason": {"bad"}, "request": {"once"}}
	for range 2 {
		body := submit(d, "/ui/act/rollback", form)
		mustHave(t, body, "rolled back", `href="/ui/act/rollback?model=intent%2Fbot-1%403"`)
	}
	if f.keys[0] != "once" || f.keys[1] != "once" {
		t.Errorf("keys of the requests: %s", f.keys)
	}
	var asked api.PromotionAsked
	if err := json.Unmarshal([]byte(f.bodies[0]), &asked); err != nil || asked.DryRun || asked.Basis == nil || *asked.Basis != 3 {
		t.Errorf("the request is %s", f.bodies[0])
	}
}

// A pin of another version than the champion is undone for the whole model: the API refuses an unpin of a version.
func TestPinIsUndone(t *testing.T) {
	t.Parallel()
	d, _ := openRecording(t, fakeAPI{"POST /api/v1/model/pin": api.PromotionDone{Model: "intent/bot-1", Version: 2, Before: 3, Champion: 2, Done: "pinned to version 2"}})
	mustHave(t, submit(d, "/ui/act/pin", url.Values{"model": {"intent/bot-1@2"}}), "pinned to version 2", `href="/ui/act/unpin?model=intent%2Fbot-1"`)
}

// An action on several models is one form, one result for each, and one undo for all.
func TestActionOnSeveralModels(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/model/rollback": api.PromotionDone{Model: "m", Before: 3, Champion: 2, Done: "rolled back"}})
	body := fetch(d, "/ui/act/rollback?model=a&model=b@4&reason=bad").Body.String()
	mustHave(t, body, "tidemill rollback a --reason bad\ntidemill rollback b@4 --reason bad", ">a\nb@4</textarea>", "2 of 2")
	if len(f.bodies) != 2 || !strings.Contains(f.bodies[1], `"model":"b","version":4`) || !strings.Contains(f.bodies[1], `"dryRun":true`) {
		t.Errorf("requests: %s", f.bodies)
	}
	mustHave(t, submit(d, "/ui/act/rollback", url.Values{"model": {"a\r\nb@4"}}), "2 of 2", `/ui/act/rollback?model=m%403&amp;model=m%403`)
}

// An action on more models than one form may name is refused as a whole.
func TestActionOnTooManyModels(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/model/rollback": api.PromotionDone{Model: "m", Before: 3, Champion: 2, Done: "rolled back"}})
	some := strings.Repeat("m\n", mostCalls)
	mustHave(t, submit(d, "/ui/act/rollback", url.Values{"model": {some}}), "200 of 200")
	f.bodies = nil
	mustHave(t, submit(d, "/ui/act/rollback", url.Values{"model": {some + "n"}}), "it names 201; give at most 200", "<form")
	if len(f.bodies) > 0 {
		t.Errorf("%d requests", len(f.bodies))
	}
}

// The later requests of a retry count the runs of the earlier ones, so that its rate holds for all of them.
func TestRetryKeepsItsRate(t *testing.T) {
	t.Parallel()
	var asked []api.RunsSelected
	answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(everyRole())
			return
		}
		var one api.RunsSelected
		_ = json.NewDecoder(r.Body).Decode(&one)
		asked = append(asked, one)
		answer := api.RunsDone{Runs: []api.RunDone{{Done: "requested"}, {Done: "it has not ended", Refused: true}}}
		if len(asked) < 3 {
			answer.Next = "x"
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	d := New(Options{API: answers, Install: func() string { return "" }})
	mustHave(t, submit(d, "/ui/act/retry-runs", url.Values{"recipe": {"intent"}, "rate": {"1"}}), "Done.")
	if len(asked) != 3 || asked[0].First != 0 || asked[1].First != 2 || asked[2].First != 4 || asked[2].Rate != 1 {
		t.Errorf("the requests are %+v", asked)
	}
}

// A key may have commas, and begin or end with a space. A run is started for that key, and not for another one.
func TestKeysWithCommasAndSpaces(t *testing.T) {
	t.Parallel()
	d, f := openRecording(t, fakeAPI{"POST /api/v1/runs": api.RunsDone{}})
	body := submit(d, "/ui/act/start-runs", url.Values{"recipe": {"intent"}, "key": {" bot-1\r\nbot-2 \r\n\r\na,b"}})
	mustHave(t, body, esc(`tidemill runs start intent --key ' bot-1' --key 'bot-2 ' --key 'a\,b'`))
	if len(f.bodies) != 1 || !strings.Contains(f.bodies[0], `"keys":[" bot-1","bot-2 ","a,b"]`) {
		t.Errorf("requests: %s", f.bodies)
	}
}

// A problem of the API is shown next to the form, which keeps its values.
func TestActionShowsItsProblem(t *testing.T) {
	t.Parallel()
	d, _ := openRecording(t, fakeAPI{"POST /api/v1/runs/cancel": &api.Problem{Status: 403, Title: "not allowed", Detail: "you may not operate on this key"}})
	mustHave(t, submit(d, "/ui/act/cancel-runs", url.Values{"run": {"r1"}, "reason": {"why"}}), "you may not operate on this key", `value="why"`, "<form")
}

// A request that may have been done keeps its key, so that the next try does not do it twice. After a refusal, nothing was done.
func TestActionThatMayBeDoneKeepsItsKey(t *testing.T) {
	t.Parallel()
	for status, keeps := range map[int]bool{http.StatusServiceUnavailable: true, http.StatusInternalServerError: true, http.StatusBadRequest: false, http.StatusForbidden: false} {
		d, f := openRecording(t, fakeAPI{"POST /events": &api.Problem{Status: status, Title: "it is not known", Detail: "publish it again with the same id"}})
		html := submit(d, "/ui/act/publish", url.Values{"type": {"new-data"}, "request": {"once"}})
		if kept := strings.Contains(html, `name="request" value="once"`); kept != keeps || !strings.Contains(f.bodies[0], `"id":"once"`) {
			t.Errorf("after %d: kept %v, and the request was %s", status, kept, f.bodies)
		}
	}
}

// An event whose source and id are known is not stored. The page says so.
func TestRepeatedEventIsNotStored(t *testing.T) {
	t.Parallel()
	d := New(Options{Install: func() string { return "" }, API: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(everyRole())
			return
		}
		w.Header().Set(api.HeaderRepeated, "true")
		w.WriteHeader(http.StatusAccepted)
	})})
	html := submit(d, "/ui/act/publish", url.Values{"type": {"new-data"}, "id": {"order-17"}})
	mustHave(t, html, "nothing was stored now")
	if strings.Contains(html, "The event is stored.") {
		t.Error("the page says that the event is stored")
	}
}

// An action that takes several requests continues with the cursor of each answer.
func TestActionContinues(t *testing.T) {
	t.Parallel()
	pages := 0
	answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(everyRole())
			return
		}
		var asked api.RunsAsked
		_ = json.NewDecoder(r.Body).Decode(&asked)
		pages++
		answer := api.RunsDone{Runs: []api.RunDone{{Recipe: "intent", Key: "after " + asked.After, Done: "requested"}}}
		if asked.After == "" {
			answer.Next = "x"
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	d := New(Options{API: answers, Install: func() string { return "" }})
	mustHave(t, submit(d, "/ui/act/start-runs", url.Values{"recipe": {"intent"}, "all": {"true"}}), "after x")
	if pages != 2 {
		t.Errorf("%d requests", pages)
	}
}

// If a later request of an action fails, its page shows the results of the earlier ones and the failure.
func TestActionThatFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked api.RunsSelected
		if r.Method == http.MethodPost {
			_ = json.NewDecoder(r.Body).Decode(&asked)
		}
		switch {
		case r.Method == http.MethodGet:
			_ = json.NewEncoder(w).Encode(everyRole())
		case asked.After != "":
			w.WriteHeader(http.StatusTooManyRequests)
			_ = json.NewEncoder(w).Encode(&api.Problem{Title: "too many requests", Detail: "wait a second"})
		default:
			answer := api.RunsDone{Next: "x"}
			for i := range 2 * mostRows {
				answer.Runs = append(answer.Runs, api.RunDone{Recipe: "intent", Key: strconv.Itoa(i), Done: "cancelled"})
			}
			_ = json.NewEncoder(w).Encode(answer)
		}
	})
	d := New(Options{API: answers, Install: func() string { return "" }})
	mustHave(t, submit(d, "/ui/act/cancel-runs", url.Values{"recipe": {"intent"}}), "Done.", "400 of 400 runs", "intent 0", "More are left", "201 more", "wait a second")
}

// The caller without the role sees why, and no button does the action.
func TestActionNeedsItsRole(t *testing.T) {
	t.Parallel()
	f := &recordingAPI{fakeAPI: fakeAPI{"GET /api/v1/caller": api.Caller{Name: "ana", Roles: []string{"read"}}}}
	d := New(Options{API: f, Install: func() string { return "" }})
	for _, body := range []string{fetch(d, "/ui/act/promote?model=m&version=1").Body.String(), submit(d, "/ui/act/promote", url.Values{"model": {"m"}})} {
		mustHave(t, body, "needs the role approve")
		if strings.Contains(body, `formmethod="post"`) || len(f.bodies) > 0 {
			t.Errorf("the action is offered or done: %s", f.bodies)
		}
	}
}

func TestShellWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"bot-42": "bot-42", "": "''", "a b": "'a b'", "it's": `"it's"`, `it's $HOME`: `'it'\''s $HOME'`, `{"a": 1}`: `'{"a": 1}'`, "a;b": "'a;b'"} {
		if got := shellWord(text); got != want {
			t.Errorf("%q is %s, want %s", text, got, want)
		}
	}
}

// A key that begins like a flag comes after --.
func TestACommandWithAKeyLikeAFlag(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]*commandLine{
		"tidemill forget --reason 'a b' -- -1": newCommand("forget", "-1").flag("reason", "a b"),
		"tidemill forget bot-1 --yes":          newCommand("forget", "bot-1").toggle("yes", true),
	} {
		if got := c.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Every action undoes with an action that exists, and its page has a form without a script.
func TestEveryActionHasAPage(t *testing.T) {
	t.Parallel()
	d, _ := openRecording(t, fakeAPI{})
	seen := map[string]bool{}
	for _, a := range actionTable() {
		if seen[a.name] {
			t.Errorf("%s is twice in the table", a.name)
		}
		seen[a.name] = true
		if a.undo != "" && actionNamed(a.undo) == nil {
			t.Errorf("%s is undone by %s, which does not exist", a.name, a.undo)
		}
		body := fetch(d, "/ui/act/"+a.name).Body.String()
		mustHave(t, body, esc(a.will[:20]), `<form class="act" method="get"`, "<tm-copy><code>tidemill ")
		for _, f := range a.fields {
			mustHave(t, body, `name="`+f.name+`"`)
		}
	}
	list := fetch(d, "/ui/act").Body.String()
	for name := range seen {
		mustHave(t, list, `"/ui/act/`+name+`"`)
	}
}

// A version that is not a whole number is refused. Nothing is done to the version whose number is near.
func TestVersionOfAnAction(t *testing.T) {
	t.Parallel()
	for _, form := range []url.Values{{"version": {"2.9"}}, {"version": {"x"}, "basis": {"3"}}, {"version": {"2"}, "basis": {"NaN"}}, {"version": {"1e30"}}} {
		d, f := openRecording(t, fakeAPI{"POST /api/v1/model/promote": api.PromotionDone{Model: "m", Done: "promoted"}})
		form.Set("model", "m")
		mustHave(t, submit(d, "/ui/act/promote", form), "a field is invalid", " number")
		if len(f.bodies) > 0 {
			t.Errorf("%v is asked for as %s", form, f.bodies)
		}
	}
}

func TestSinceOfAnAction(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{"-2h": testNow().Add(-2 * time.Hour), "-1d": testNow().Add(-24 * time.Hour), "2026-05-04T10:00:00Z": testNow().Add(-2 * time.Hour)} {
		got, err := arguments{url.Values{"since": {text}}}.since("since", testNow())
		if err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"2h", "yesterday", "-x"} {
		if _, err := (arguments{url.Values{"since": {text}}}).since("since", testNow()); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}

// Every page has its links and forms without a script: nothing but the sign-in is made by it.
func TestPagesWorkWithoutAScript(t *testing.T) {
	t.Parallel()
	d := open(t, fakeAPI{"GET /api/v1/pools": pools(), "GET /api/v1/runs": api.Runs{Next: "later"}, "GET /api/v1/dead-letters": api.DeadLetters{Cursor: "later", DeadLetters: []api.DeadLetter{{ID: "abc", Reason: "timeout"}}},
		"GET /api/v1/streams/events/events": struct{}{}, "GET /api/v1/streams": api.Streams{Streams: []api.Stream{{Name: "events"}}}})
	for path, parts := range map[string][]string{
		"/ui/runs":           {`<form class="filter" method="get"`, `href="/ui/act/pause-pool?pool=small"`},
		"/ui/dead-letters":   {`<form class="filter" method="get"`, `rel="next" href="/ui/dead-letters?cursor=later"`, `href="/ui/dead-letters/abc"`, `href="/ui/act/drop-letters?all=true"`},
		"/ui/streams":        {`href="/ui/streams/events"`, `href="/ui/act/publish"`},
		"/ui/streams/events": {`<form class="filter" method="get"`},
		"/ui/search":         {`action="/ui/search"`},
	} {
		mustHave(t, fetch(d, path).Body.String(), parts...)
	}
	button := regexp.MustCompile(`<button type="button"`)
	if body := fetch(d, "/ui/runs").Body.String(); button.MatchString(body) {
		t.Error("a button without a form does nothing without a script")
	}
}

func TestLettersAreGrouped(t *testing.T) {
	t.Parallel()
	all := groupLetters(api.DeadLetters{Total: 3, DeadLetters: []api.DeadLetter{{Trigger: "a", Reason: "x"}, {Trigger: "b", Reason: "x\nmore"}, {Trigger: "b", Reason: "x\nmore"}}})
	if len(all.Groups) != 2 || all.Groups[0].Count != 2 || all.Groups[0].address() != "/ui/dead-letters?reason=x&trigger=b" {
		t.Errorf("%+v", all)
	}
}
