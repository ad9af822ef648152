package client

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker"
)

// asIs answers with a text, and records the requests.
func asIs(text string, asked *[]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = append(*asked, r.Method+" "+r.URL.RequestURI()+" "+string(body))
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, text)
	}
}

func TestWhatIsAskedOfTheDesk(t *testing.T) {
	for want, ask := range map[string]func(*Gateway) error{
		"GET /base/api/v1/triggers ": func(g *Gateway) error { _, err := g.Triggers(t.Context()); return err },
		"GET /base/api/v1/triggers/tell-crm ": func(g *Gateway) error {
			_, err := g.Trigger(t.Context(), "tell-crm")
			return err
		},
		"POST /base/api/v1/triggers/tell-crm/pause ": func(g *Gateway) error {
			_, err := g.PauseTrigger(t.Context(), "tell-crm")
			return err
		},
		"POST /base/api/v1/triggers/tell-crm/resume ": func(g *Gateway) error {
			_, err := g.ResumeTrigger(t.Context(), "tell-crm")
			return err
		},
		`POST /base/api/v1/triggers/tell-crm/replay {"from":"-1h","rate":5}`: func(g *Gateway) error {
			_, err := g.ReplayTrigger(t.Context(), "tell-crm", api.ReplayAsk{From: "-1h", Rate: 5})
			return err
		},
		"GET /base/api/v1/dead-letters?cursor=c&key=a%2Fb&limit=7&since=-1h ": func(g *Gateway) error {
			_, err := g.DeadLetters(t.Context(), api.LetterSelection{Key: "a/b", Since: "-1h"}, 7, "c")
			return err
		},
		"GET /base/api/v1/dead-letters/x ": func(g *Gateway) error { _, err := g.DeadLetter(t.Context(), "x"); return err },
		`POST /base/api/v1/dead-letters/replay {"selection":{"ids":["x"]},"rate":2}`: func(g *Gateway) error {
			_, err := g.ReplayLetters(t.Context(), api.LetterAsk{Selection: api.LetterSelection{IDs: []string{"x"}}, Rate: 2})
			return err
		},
		`POST /base/api/v1/dead-letters/drop {"selection":{"all":true},"reason":"r"}`: func(g *Gateway) error {
			_, err := g.DropLetters(t.Context(), api.LetterAsk{Selection: api.LetterSelection{All: true}, Reason: "r"})
			return err
		},
	} {
		var asked []string
		if err := ask(gatewayOf(t, asIs("{}", &asked))); err != nil || len(asked) != 1 || asked[0] != want {
			t.Errorf("asked is %q (%v), not %q", asked, err, want)
		}
	}
}

func TestTheDeskIsAskedAgain(t *testing.T) {
	var asked []string
	text, err := json.Marshal(api.LetterDone{Letters: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	answer, n := inOrder(problemHandler(slug(api.InDoubt, 503, "perhaps")), problemHandler(slug(api.Unavailable, 503, "no")), asIs(string(text), &asked))
	done, err := gatewayOf(t, answer).DropLetters(t.Context(), api.LetterAsk{Reason: "r"})
	if err != nil || len(done.Letters) != 1 || *n != 3 {
		t.Errorf("%+v, %v after %d", done, err, *n)
	}
	_, err = gatewayOf(t, problemHandler(slug(api.UnknownTrigger, 404, "no trigger"))).PauseTrigger(t.Context(), "x")
	if Status(err) != 404 || !strings.Contains(err.Error(), "pause trigger x: no trigger") || errors.Is(err, broker.ErrInDoubt) {
		t.Errorf("%v", err)
	}
}

func TestAReplayOfATriggerIsAskedForOnce(t *testing.T) {
	answer, n := inOrder(problemHandler(slug(api.InDoubt, 503, "perhaps")))
	_, err := gatewayOf(t, answer).ReplayTrigger(t.Context(), "x", api.ReplayAsk{From: "0"})
	if !errors.Is(err, broker.ErrInDoubt) || *n != 1 {
		t.Errorf("%v after %d", err, *n)
	}
	if _, err := gatewayOf(t, htmlHandler(200, "hello")).Triggers(t.Context()); err == nil {
		t.Error("a page is no list of triggers")
	}
}
