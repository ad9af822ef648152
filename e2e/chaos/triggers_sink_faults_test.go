package chaos

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"tidemill.dev/broker"
)

// postEvent posts an event to a sink as a dispatcher does, with the headers as change leaves them. It
// returns the status, or 0 if there is no answer, and the reply.
func postEvent(ctx context.Context, t *testing.T, addr, rule string, v *broker.View, change func(http.Header)) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/"+rule, strings.NewReader(string(v.Data)))
	if err != nil {
		t.Fatal(err)
	}
	odd, _ := v.Attribute(extOdd)
	for name, value := range map[string]string{"Ce-Specversion": "1.0", "Ce-Id": v.ID, "Ce-Source": v.Source, "Ce-Type": v.Type,
		"Ce-Subject": v.Subject, "Ce-" + extOdd: odd, "Content-Type": v.DataContentType, "Prefer": preferenceOf(rule)} {
		r.Header.Set(name, value)
	}
	if change != nil {
		change(r.Header)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, res.Header, string(body)
}

// calmEvent returns an event whose first attempt for a rule gets the wanted mood.
func calmEvent(seed uint64, rule string, want func(mood) bool) *broker.View {
	for n := 1; ; n += 2 {
		if m := moodOf(seed, rule, eventID(n), 0); m.after < longSleep && want(m) {
			return event(n)
		}
	}
}

func fineMood(m mood) bool { return m.status == http.StatusOK && !m.cut }

func openTestSink(t *testing.T) *sink {
	t.Helper()
	s, err := openSink(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestTheSinkAnswersAndWritesDown(t *testing.T) {
	s := openTestSink(t)
	e := calmEvent(1, "keyed", fineMood)
	status, h, body := postEvent(t.Context(), t, s.addr, "keyed", e, nil)
	if status != http.StatusOK || h.Get("Ce-Type") != typeReply || h.Get("Ce-Replyto") != e.ID || h.Get("Ce-Subject") != e.Subject || body != replyData(e.ID) {
		t.Errorf("%d %v %q", status, h, body)
	}
	bad := calmEvent(1, "loose", func(m mood) bool { return m.status == http.StatusInternalServerError })
	if status, _, _ = postEvent(t.Context(), t, s.addr, "loose", bad, nil); status != http.StatusInternalServerError {
		t.Error(status)
	}
	cut := calmEvent(1, "loose", func(m mood) bool { return m.cut })
	if status, _, _ = postEvent(t.Context(), t, s.addr, "loose", cut, nil); status != 0 {
		t.Error(status)
	}
	attempts, wrong := s.story()
	if len(wrong) > 0 || len(attempts) != 3 || !attempts[0].fine() || attempts[1].status != 500 || attempts[2].ended != 0 || attempts[1].began <= attempts[0].ended {
		t.Errorf("%v %v", attempts, wrong)
	}
	if all := s.delivered("keyed"); len(all) != 1 || !all[e.ID] || len(s.delivered("loose")) != 0 {
		t.Error(all)
	}
}

func TestTheDeadAnswerWhenTheyAreRevived(t *testing.T) {
	s := openTestSink(t)
	e := calmEvent(1, "refused", fineMood)
	if status, _, _ := postEvent(t.Context(), t, s.refused, "refused", e, nil); status != 0 {
		t.Errorf("a dead subscriber answers %d", status)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	gone := make(chan int)
	hung := calmEvent(1, "hanging", fineMood)
	go func() {
		status, _, _ := postEvent(ctx, t, s.addr, "hanging", hung, nil)
		gone <- status
	}()
	if err := await(t.Context(), func() (string, error) {
		return strings.Repeat("nothing has come", 1-min(1, s.now())), nil
	}); err != nil {
		t.Fatal(err)
	}
	giveUp()
	if status := <-gone; status != 0 {
		t.Errorf("who hangs answers %d", status)
	}
	if err := s.revive(); err != nil {
		t.Fatal(err)
	}
	for rule, addr := range map[string]string{"refused": s.refused, "hanging": s.addr} {
		if status, _, _ := postEvent(t.Context(), t, addr, rule, calmEvent(1, rule, fineMood), nil); status == 0 {
			t.Errorf("%s does not answer", rule)
		}
	}
}

func TestTheSinkSeesWhatIsAltered(t *testing.T) {
	for name, c := range map[string]struct {
		change func(http.Header)
		data   string
		wrong  int
	}{
		"nothing":        {wrong: 0},
		"another source": {change: func(h http.Header) { h.Set("Ce-Source", "/") }, wrong: 1},
		"another key":    {change: func(h http.Header) { h.Set("Ce-Subject", "key-x") }, wrong: 1},
		"no odd":         {change: func(h http.Header) { h.Del("Ce-Odd") }, wrong: 1},
		"no preference":  {change: func(h http.Header) { h.Del("Prefer") }, wrong: 1},
		"another's data": {data: dataOf(eventID(9)) + "x", wrong: 1},
	} {
		s := openTestSink(t)
		e := calmEvent(1, "keyed", fineMood)
		if c.data != "" {
			e.Data = []byte(c.data)
		}
		postEvent(t.Context(), t, s.addr, "keyed", e, c.change)
		if _, wrong := s.story(); len(wrong) != c.wrong {
			t.Errorf("%s is altered: %v", name, wrong)
		}
	}
}

func TestEventsOfAKeyAreMany(t *testing.T) {
	keys := map[string]int{}
	for n := range manyEvents {
		keys[keyOf(int64(n))]++
		if odd, _ := event(n).Attribute(extOdd); odd != strconv.FormatBool(n%2 == 1) {
			t.Fatal(n)
		}
	}
	if len(keys) != manyKeys || keys["key-0"] < 3*keys["key-100"] {
		t.Errorf("%d keys, %d of a busy one", len(keys), keys["key-0"])
	}
}
