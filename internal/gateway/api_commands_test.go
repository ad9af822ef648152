package gateway

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
)

func (w *world) commandLog(query string, headers ...string) api.Commands {
	w.Helper()
	return sendDecoded[api.Commands](w, http.MethodGet, "/api/v1/commands"+query, "", headers...)
}

func doneWords(all []api.Command) (words []string) {
	for _, c := range all {
		words = append(words, c.Done)
	}
	return words
}

// A person who does not know whether a command is stored sends the request again, and publishes no event.
func TestACommandInDoubt(t *testing.T) {
	t.Parallel()
	p := (&Gateway{}).commandProblem(&broker.View{ID: "x1", Type: tidemill.TypeTriggerPaused}, fmt.Errorf("write: %w", broker.ErrInDoubt), 2*time.Second)
	if p.Type != api.ProblemBase+api.InDoubt || p.Status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, `"x1"`) || !strings.Contains(p.Detail, "within 2s; look whether") || strings.Contains(p.Detail, "publish") {
		t.Errorf("%+v", p)
	}
}

func TestCommandsAreListedNewestFirst(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	if all := w.commandLog(""); len(all.Commands) != 0 || all.Next != "" {
		t.Errorf("without commands: %+v", all)
	}
	w.pauseTarget("/api/v1/pools/small/pause")
	w.pauseTarget("/api/v1/recipes/intent/pause")
	sendDecoded[api.Rested](w.world, http.MethodPost, "/api/v1/promotions/freeze", `{"reason":"an incident"}`)
	w.pauseTarget("/api/v1/pools/small/resume")
	all := w.commandLog("")
	want := []string{"pool small resumed", "promotions of all recipes frozen", "recipe intent paused", "pool small paused"}
	if got := doneWords(all.Commands); !slices.Equal(got, want) || all.Next != "" {
		t.Errorf("%q, next %q; want %q", got, all.Next, want)
	}
	if c := all.Commands[1]; c.Reason != "an incident" || c.Type != "tidemill.promotions.frozen" || c.Subject != "*" || c.At.IsZero() || c.ID == "" {
		t.Errorf("the freeze is %+v", c)
	}
	first := w.commandLog("?limit=3")
	rest := w.commandLog("?limit=3&after=" + first.Next)
	if got := append(doneWords(first.Commands), doneWords(rest.Commands)...); !slices.Equal(got, want) || len(first.Commands) != 3 || rest.Next != "" {
		t.Errorf("two pages: %q, next %q", got, rest.Next)
	}
	for query, says := range map[string]string{"after=x": "begin at the first page", "limit=0": "limit", "by=x": "by"} {
		w.expectProblem(http.MethodGet, "/api/v1/commands?"+query, "", http.StatusBadRequest, says)
	}
}

// Changes of champions by people are in the same list, at their time.
func TestCommandsHaveTheChangesOfChampions(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: read, keys: [bot-1]")+callerLine("max", "role: approve"))
	w := newRuns(t, func(o *Options) { o.Access = guard })
	max := tokenHeader("max")
	for _, bot := range []string{"bot-1", "bot-2"} {
		w.makeChampions("intent/"+bot, bot, 3)
		w.sendModelRequest("rollback", `{"model":"intent/`+bot+`","reason":"it is wrong"}`, max...)
	}
	w.pauseTarget("/api/v1/pools/small/pause", max...)
	w.sendModelRequest("promote", `{"model":"intent/bot-1","version":1}`, max...)
	w.sendModelRequest("pin", `{"model":"intent/bot-1"}`, max...)
	want := []string{"model intent/bot-1: version 1 pinned", "model intent/bot-1: version 1 promoted, previously version 2", "pool small paused",
		"model intent/bot-2: version 2 restored by a rollback, previously version 3", "model intent/bot-1: version 2 restored by a rollback, previously version 3"}
	all := w.commandLog("", max...)
	if got := doneWords(all.Commands); !slices.Equal(got, want) || all.Next != "" {
		t.Errorf("%q, next %q", got, all.Next)
	}
	if c := all.Commands[3]; c.By != "max" || c.Reason != "it is wrong" || c.Type != "tidemill.model.rolled-back" || c.Subject != "intent/bot-2" || c.ID == "" {
		t.Errorf("the rollback is %+v", c)
	}
	for limit := 1; limit < 5; limit++ {
		var got []string
		query := fmt.Sprint("?limit=", limit)
		for {
			page := w.commandLog(query, max...)
			got = append(got, doneWords(page.Commands)...)
			if page.Next == "" || len(got) > len(want) {
				break
			}
			query = fmt.Sprint("?limit=", limit, "&after=", page.Next)
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %q", limit, got)
		}
	}
	if got := doneWords(w.commandLog("", tokenHeader("ana")...).Commands); !slices.Equal(got, []string{want[0], want[1], want[4]}) {
		t.Errorf("with one key: %q", got)
	}
}

// A page may end between two changes of one time, as a bulk rollback makes them.
func TestCommandsOfOneTime(t *testing.T) {
	t.Parallel()
	all := make([]ledger.PersonChange, 3)
	for i := range all {
		all[i] = ledger.PersonChange{Model: fmt.Sprint("intent/bot.", i), Change: fold.Change{At: time.Unix(1_790_000_000, 7), Action: tidemill.ActionRollback, Version: i + 1}}
	}
	var got []string
	for place := (commandPlace{}); ; {
		l := commandList{from: place, limit: 2}
		for i := range all {
			if place.changes.Precedes(&all[i]) && len(l.changes) < l.limit {
				l.changes = append(l.changes, all[i])
			}
		}
		page := l.merge()
		for _, c := range page.Commands {
			got = append(got, c.Subject)
		}
		if page.Next == "" || len(got) > len(all) {
			break
		}
		var p *api.Problem
		if place, p = parseCommandPlace(page.Next); p != nil {
			t.Fatal(p)
		}
	}
	if want := []string{"intent/bot.0", "intent/bot.1", "intent/bot.2"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// Commands name things of other teams, so callers with limited keys see none.
func TestCommandsAreForReadersOfAllKeys(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("ana", "role: read, keys: [bot-1]")+callerLine("max", "role: approve"))
	w := newRuns(t, func(o *Options) { o.Access = guard })
	w.pauseTarget("/api/v1/pools/small/pause", tokenHeader("max")...)
	if all := w.commandLog("", tokenHeader("max")...).Commands; len(all) != 1 || all[0].By != "max" {
		t.Errorf("all keys: %+v", all)
	}
	if all := w.commandLog("", tokenHeader("ana")...); len(all.Commands) != 0 || all.Next != "" {
		t.Errorf("one key: %+v", all)
	}
	if r := w.do(http.MethodGet, "/api/v1/commands", ""); r.StatusCode != http.StatusUnauthorized || strings.Contains(r.body, "small") {
		t.Errorf("without a token: %d", r.StatusCode)
	}
}
