package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

func (m *trainingWorld) log(run, query string, headers ...string) reply {
	m.Helper()
	return m.do(http.MethodGet, "/api/v1/runs/"+run+"/log"+query, "", headers...)
}

// sendLogLine sends a line of an attempt's log, as its nth chunk.
func (a *agentAttempt) sendLogLine(seq int, text string) {
	a.Helper()
	if r := a.post("/log?seq="+itoa(seq), outLine+text+"\n"); r.StatusCode != http.StatusNoContent {
		a.Fatalf("%d %s", r.StatusCode, r.body)
	}
}

func (a *agentAttempt) finish(o tidemill.Outcome) {
	a.Helper()
	var done api.Finished
	a.postJSON("/finish", api.Finish{Outcome: o}, &done)
}

func TestTheLogOfARun(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	if r := m.log(a.run, ""); r.StatusCode != http.StatusOK || r.body != "" || r.Header.Get(api.HeaderAttempt) != "1" {
		t.Errorf("before the first word: %d %q", r.StatusCode, r.body)
	}
	a.sendLogLine(0, "one")
	a.sendLogLine(1, "two")
	m.loseAttempt(a.run, 1)
	b := m.waitForAttempt(a.run, 2)
	b.sendLogLine(0, "again")
	for query, want := range map[string]string{"": "again\n", "?attempt=1": "one\ntwo\n", "?attempt=2": "again\n", "?attempt=1&skip=2": "e\ntwo\n", "?skip=100": "",
		"?attempt=2&timestamps=true": strings.Fields(outLine)[0] + " stdout again\n"} {
		if r := m.log(a.run, query); r.StatusCode != http.StatusOK || r.body != want || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain") {
			t.Errorf("%s: %d %q, want %q", query, r.StatusCode, r.body, want)
		}
	}
	for query, says := range map[string]string{"?attempt=3": "2 attempts", "?attempt=0": "attempt", "?attempt=x": "attempt", "?follow=perhaps": "follow",
		"?timestamps=1": "timestamps", "?skip=-1": "skip", "?tail=3": "tail"} {
		wantProblem(t, m.log(a.run, query), http.StatusBadRequest, api.InvalidRequest, says)
	}
	for run, status := range map[string]int{a.run[:8]: 200, "nowhere": 404, strings.Repeat("a", 26): 404, strings.ToUpper(a.run): 404,
		"..%2f..%2fx": 404, "a": 400, "*": 400, "*******": 404, "..%5c..%5c": 404} {
		if r := m.log(run, ""); r.StatusCode != status {
			t.Errorf("%s: %d %s", run, r.StatusCode, r.body)
		}
	}
}

// A reader that follows a log gets each chunk while the run goes on, the next attempt's log
// too, and is released when the run has ended.
func TestALogIsFollowed(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	req := must1(http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+"/api/v1/runs/"+a.run+"/log?follow=true", nil))(t)
	res := must1(http.DefaultClient.Do(req))(t)
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	read := func(want string) {
		t.Helper()
		if got, err := in.ReadString('\n'); got != want+"\n" || err != nil {
			t.Fatalf("read %q %v, want %q", got, err, want)
		}
	}
	a.sendLogLine(0, "one")
	read("one")
	a.sendLogLine(1, "two")
	read("two")
	m.loseAttempt(a.run, 1)
	b := m.waitForAttempt(a.run, 2)
	read("--- attempt 2 ---")
	b.sendLogLine(0, "three")
	read("three")
	b.sendLogLine(1, "four")
	b.finish(tidemill.OutcomeSucceeded)
	read("four")
	if rest, err := io.ReadAll(in); len(rest) > 0 || err != nil {
		t.Errorf("%q %v", rest, err)
	}
	if all := m.log(a.run, "?attempt=1&follow=true&skip=4").body; all != "two\n--- attempt 2 ---\nthree\nfour\n" {
		t.Errorf("whoever comes back gets %q", all)
	}
}

// The store has lost chunks. A line replaces them, and the rest of the log follows.
func TestALogWithoutSomeChunks(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	put := func(part string, seq int, text string) {
		chunk := []byte(outLine + text + "\n")
		if part == "" {
			m.must(m.store.PutLog(t.Context(), a.run, 1, seq, chunk))
			return
		}
		m.must(m.store.PutPartLog(t.Context(), a.run, 1, part, seq, chunk))
	}
	put("", 0, "one")
	put("", 3, "four")
	put("w1", 0, "eins")
	put("w1", 2, "drei")
	const first, others = "one\n--- chunks missing in the store: 2 ---\nfour\n", "[w1] eins\n[w1] --- chunks missing in the store: 1 ---\n[w1] drei\n"
	for query, want := range map[string]string{"": first + others, "?part=w0": first, "?part=w1": others} {
		if got := m.log(a.run, query).body; got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
	res := must1(http.DefaultClient.Do(must1(http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+"/api/v1/runs/"+a.run+"/log?follow=true", nil))(t)))(t)
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for want := range strings.Lines(first) {
		if got := must1(in.ReadString('\n'))(t); got != want {
			t.Fatalf("a follower reads %q, want %q", got, want)
		}
	}
	put("", 5, "six")
	a.finish(tidemill.OutcomeSucceeded)
	if rest := must1(io.ReadAll(in))(t); string(rest) != "--- chunks missing in the store: 1 ---\nsix\n"+others {
		t.Errorf("and then %q", rest)
	}
}

// A reader follows a log from an earlier attempt on. The store has lost a chunk of the present attempt, and the reader gets the
// later ones before its end.
func TestALaterAttemptWithoutSomeChunks(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	a.sendLogLine(0, "one")
	m.loseAttempt(a.run, 1)
	m.waitForAttempt(a.run, 2).sendLogLine(1, "two")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	res := must1(http.DefaultClient.Do(must1(http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/api/v1/runs/"+a.run+"/log?attempt=1&follow=true", nil))(t)))(t)
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	for want := range strings.Lines("one\n--- attempt 2 ---\n--- chunks missing in the store: 1 ---\ntwo\n") {
		if got, err := in.ReadString('\n'); got != want {
			t.Fatalf("it reads %q, %v; want %q", got, err, want)
		}
	}
}

// A gateway that closes cuts off its followers, so that they know that there is more. It does
// not wait for them.
func TestAClosingGatewayCutsLogsOff(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	a.sendLogLine(0, "one")
	res := must1(http.DefaultClient.Do(must1(http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+"/api/v1/runs/"+a.run+"/log?follow=true", nil))(t)))(t)
	defer res.Body.Close()
	in := bufio.NewReader(res.Body)
	if got := must1(in.ReadString('\n'))(t); got != "one\n" {
		t.Errorf("%q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	m.must(m.gateway.Close(ctx))
	if rest, err := io.ReadAll(in); err == nil {
		t.Errorf("%q, and that is said to be all", rest)
	}
}

// The store has the log of a run that the ledger no longer has.
func TestTheLogOfAForgottenRun(t *testing.T) {
	t.Parallel()
	m := newMill(t, func(o *Options) {
		o.Access = openGuard(t, "version: 1\ntokens:\n"+callerLine("all", "role: read")+callerLine("some", "role: read, keys: [bot-1]")+callerLine("others", "role: read, keys: [bot-2]"))
	})
	const run = "aaaaaaaaaaaaaaaaaaaaaaaaaa"
	for attempt, text := range map[int]string{1: "one", 4: "four"} {
		m.must(m.store.PutLog(t.Context(), run, attempt, 0, []byte(outLine+text+"\n")))
	}
	for query, want := range map[string]string{"": "four\n", "?follow=true": "four\n", "?attempt=1": "one\n"} {
		if r := m.log(run, query, tokenHeader("all")...); r.StatusCode != http.StatusOK || r.body != want {
			t.Errorf("%s: %d %q", query, r.StatusCode, r.body)
		}
	}
	wantProblem(t, m.log(run, "?attempt=2", tokenHeader("all")...), http.StatusNotFound, api.UnknownRun, "")
	wantProblem(t, m.log(run, "", tokenHeader("some")...), http.StatusNotFound, api.UnknownRun, "")
	a := m.beginRun("fit", "bot-1")
	a.sendLogLine(0, "one")
	if r := m.log(a.run, "", tokenHeader("some")...); r.StatusCode != http.StatusOK || r.body != "one\n" {
		t.Errorf("of their key: %d %q", r.StatusCode, r.body)
	}
	wantProblem(t, m.log(a.run, "", tokenHeader("others")...), http.StatusNotFound, api.UnknownRun, "")
	wantProblem(t, m.log(a.run, ""), http.StatusUnauthorized, api.Unauthenticated, "")
}

// The log is far larger than the part of it that is held in memory.
func TestALargeLog(t *testing.T) {
	t.Parallel()
	m := newMill(t, nil)
	a := m.beginRun("fit", "bot-1")
	line := outLine + strings.Repeat("x", 999) + "\n"
	chunk := []byte(strings.Repeat(line, 500))
	const chunks = 40
	for seq := range chunks {
		m.must(m.store.PutLog(t.Context(), a.run, 1, seq, chunk))
	}
	if r := m.log(a.run, ""); len(r.body) != chunks*500*1000 {
		t.Errorf("%d bytes", len(r.body))
	}
	if n := m.gateway.room.takenBytes(); n != 0 {
		t.Errorf("it still holds %v", n)
	}
}
