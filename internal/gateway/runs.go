package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/follow"
	"tidemill.dev/config"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/commands"
)

const mostLookedThrough = 20 // pages of the ledger that are searched for one visible run

func runParameters() []string { return []string{"after", "key", "limit", "recipe", "since", "state"} }

// listRuns answers with runs, newest first.
func (g *Gateway) listRuns(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery(runParameters())
	if p != nil {
		return p
	}
	q, p := runQuery(values, time.Now())
	if p != nil {
		return p
	}
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	page, err := g.runsSeenBy(ctx, r.caller, q)
	if err != nil {
		return g.ledgerProblem(r.Context(), err)
	}
	shown, p := g.showRuns(ctx, page.Runs)
	if p != nil {
		return p
	}
	answer := api.Runs{Runs: shown, Next: page.Next}
	if page.Total >= 0 && r.caller.AllKeys(access.Read) {
		answer.Total = &page.Total
	}
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// runsThere returns a problem if this gateway has no runs.
func (g *Gateway) runsThere() *api.Problem {
	if g.opt.Runs == nil || g.opt.Ledger == nil {
		return noRuns()
	}
	return nil
}

// runQuery reads the parameters of listRuns.
func runQuery(values url.Values, now time.Time) (q ledger.Query, p *api.Problem) {
	q = ledger.Query{Recipe: values.Get("recipe"), Key: values.Get("key"), After: values.Get("after"), Limit: usualPage}
	if text := values.Get("state"); text != "" {
		for name := range strings.SplitSeq(text, ",") {
			q.States = append(q.States, tidemill.RunState(name))
		}
	}
	if p = checkStates("state", q.States); p != nil {
		return q, p
	}
	if since := values.Get("since"); since != "" {
		at, err := follow.ParseTime(since, now)
		if err != nil {
			return q, badParameter("since", err.Error()+"; in an address + is %2B")
		}
		q.Since = at
	}
	if limit := values.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > mostOnOne {
			return q, badParameter("limit", fmt.Sprintf("%q is not a number of runs; give 1 to %d, and after for more", clipText(limit), mostOnOne))
		}
		q.Limit = n
	}
	return q, nil
}

// runsSeenBy returns a page of the runs that a caller may see. A page may be short, because runs
// that the caller may not see are left out. An empty Next marks the last page.
func (g *Gateway) runsSeenBy(ctx context.Context, caller *access.Caller, q ledger.Query) (page ledger.Page, err error) {
	all := caller.AllKeys(access.Read)
	for range mostLookedThrough {
		if page, err = g.opt.Ledger.Runs(ctx, q); err != nil || all {
			return page, err
		}
		seen := page.Runs[:0]
		for i := range page.Runs {
			if caller.MayTouch(access.Read, ownerOf(&page.Runs[i])) {
				seen = append(seen, page.Runs[i])
			}
		}
		if page.Runs = seen; len(seen) > 0 || page.Next == "" {
			return page, nil
		}
		q.After = page.Next
	}
	return page, nil
}

func checkStates(name string, states []tidemill.RunState) *api.Problem {
	for _, s := range states {
		switch s {
		case tidemill.RunWaiting, tidemill.RunRunning, tidemill.RunRetrying, tidemill.RunCommitting, tidemill.RunSucceeded, tidemill.RunFailed, tidemill.RunCancelled:
		default:
			return badParameter(name, fmt.Sprintf("%q is not a state of a run; the states: waiting, running, retrying, committing, succeeded, failed and cancelled", clipText(string(s))))
		}
	}
	return nil
}

// runLook holds the facts that explain why runs wait.
type runLook struct {
	now    time.Time
	config *config.Config
	acts   *commands.State
	slots  map[string]int // number of slots of each pool; 0 for no bound
	busy   ledger.Busy
	full   string // says that the disk is full; empty if it is not
}

func (g *Gateway) lookAtRuns(ctx context.Context) (*runLook, *api.Problem) {
	f, p := g.commandLog(ctx)
	if p != nil {
		return nil, p
	}
	l := &runLook{now: time.Now(), config: g.opt.Config(), acts: f.Now(), slots: map[string]int{}}
	if g.opt.Full != nil {
		l.full = g.opt.Full()
	}
	for _, pool := range l.config.Pools {
		l.slots[pool.Name] = g.slotsOf(pool)
	}
	busy, err := g.opt.Ledger.Busy(ctx, l.now)
	if err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	l.busy = busy
	return l, nil
}

func (g *Gateway) slotsOf(pool config.Pool) int {
	if g.opt.Slots == nil {
		return pool.Slots
	}
	return g.opt.Slots(pool)
}

// showRuns adds to each run its newest progress and the reason why it waits.
func (g *Gateway) showRuns(ctx context.Context, all []tidemill.Run) ([]api.RunShown, *api.Problem) {
	shown := make([]api.RunShown, len(all))
	var live []string
	idle := false
	for i := range all {
		shown[i].Run = trimRun(all[i])
		idle = idle || !all[i].State.Ended()
		if s := all[i].State; s == tidemill.RunRunning || s == tidemill.RunRetrying {
			live = append(live, all[i].ID)
		}
	}
	g.addGateMetrics(shown)
	if err := g.addProgress(ctx, shown, live); err != nil {
		return nil, g.ledgerProblem(ctx, err)
	}
	if !idle {
		return shown, nil
	}
	look, p := g.lookAtRuns(ctx)
	if p != nil {
		return nil, p
	}
	for i := range shown {
		if err := g.addWaits(ctx, look, &shown[i]); err != nil {
			return nil, g.ledgerProblem(ctx, err)
		}
	}
	return shown, nil
}

// addGateMetrics adds to each run the metrics that the gate of its recipe names, by the present
// config.
func (g *Gateway) addGateMetrics(shown []api.RunShown) {
	c, known := g.opt.Config(), map[string][]string{}
	for i := range shown {
		name := shown[i].Recipe
		if _, is := known[name]; !is {
			recipe, _ := c.Recipe(name) // a recipe that is no longer in the config has no gate
			known[name] = gate.Metrics(recipe.Gate)
		}
		shown[i].GateMetrics = known[name]
	}
}

// trimRun removes the parts that the list of runs does not show.
func trimRun(r tidemill.Run) tidemill.Run {
	r.Event, r.Plan, r.PlanMAC, r.Asked = nil, nil, "", r.Asked[max(0, len(r.Asked)-1):]
	return r
}

func (g *Gateway) addProgress(ctx context.Context, shown []api.RunShown, live []string) error {
	if len(live) == 0 {
		return nil
	}
	told, err := g.opt.Ledger.Told(ctx, live)
	if err != nil {
		return err
	}
	for i := range shown {
		text, has := told[shown[i].ID]
		if !has {
			continue
		}
		var p api.Progress
		if err := json.Unmarshal(text, &p); err != nil {
			return fmt.Errorf("read the progress of run %s: %w", shown[i].ID, err)
		}
		shown[i].Progress = &p
	}
	return nil
}

// addWaits adds the reason why a run waits. The ledger is asked for an earlier run of the same key
// only if there is no other reason.
func (g *Gateway) addWaits(ctx context.Context, l *runLook, shown *api.RunShown) error {
	shown.Waits = l.waitReason(&shown.Run)
	if shown.State != tidemill.RunWaiting || l.blockReason(&shown.Run) != "" {
		return nil
	}
	m, err := g.opt.Ledger.Making(ctx, shown.Recipe, shown.Key)
	if err != nil {
		return err
	}
	if m.Live != nil && m.Live.ID != shown.ID {
		shown.Waits = "for run " + m.Live.ID + " to end"
	}
	return nil
}

// waitReason returns in words why a run waits; empty if the run does not wait. An earlier run of
// the same key is not considered.
func (l *runLook) waitReason(r *tidemill.Run) string {
	switch r.State {
	case tidemill.RunCommitting:
		return "for its output to be committed to its dataset"
	case tidemill.RunRunning:
		return l.waitsToEnd(r)
	case tidemill.RunWaiting, tidemill.RunRetrying:
		if why := l.blockReason(r); why != "" {
			return why
		}
		return l.waitsForRoom(r)
	}
	return ""
}

func (l *runLook) waitsToEnd(r *tidemill.Run) string {
	if r.Cancel == nil {
		return ""
	}
	return "for its command to end: cancelled" + by(r.Cancel.By)
}

// blockReason returns why a run may not begin yet, even if slots are free.
func (l *runLook) blockReason(r *tidemill.Run) string {
	if _, known := l.config.Recipe(r.Recipe); !known {
		return "recipe " + r.Recipe + " is no longer in the config"
	}
	if pause, rests := l.acts.RecipePause(r.Recipe); rests {
		return l.paused("recipe "+r.Recipe, pause)
	}
	if r.Due.After(l.now) {
		return "for its time (" + l.formatTime(r.Due) + ")"
	}
	return ""
}

func (l *runLook) waitsForRoom(r *tidemill.Run) string {
	recipe, _ := l.config.Recipe(r.Recipe)
	name := recipe.Run.Pool // the recipe's present pool, even if the run began in another
	slots, known := l.slots[name]
	if !known {
		return "pool " + name + " is no longer in the config"
	}
	if pause, rests := l.acts.PoolPause(name); rests {
		return l.paused("pool "+name, pause)
	}
	switch n := l.busy.Pools[name]; {
	case recipe.MaxRunning > 0 && l.busy.Recipes[r.Recipe] >= recipe.MaxRunning:
		return fmt.Sprintf("maxRunning %d of recipe %s is reached", recipe.MaxRunning, r.Recipe)
	case slots > 0 && n >= slots:
		return fmt.Sprintf("for a slot of pool %s (%d of %d in use)", name, n, slots)
	}
	if l.full != "" {
		return "for room on the disk: " + l.full
	}
	return "to be started"
}

func (l *runLook) paused(what string, p commands.Pause) string {
	return what + " is paused" + by(p.By) + " since " + l.formatTime(p.Since)
}

func by(name string) string {
	if name == "" {
		return ""
	}
	return " by " + name
}

// formatTime writes a time, and the date if it is not today.
func (l *runLook) formatTime(at time.Time) string {
	at, now := at.UTC(), l.now.UTC()
	if at.Year() == now.Year() && at.YearDay() == now.YearDay() {
		return at.Format("15:04:05") + " UTC"
	}
	return at.Format("2006-01-02 15:04:05") + " UTC"
}

// shortestID is the number of letters of a run's id that a caller must give.
const shortestID = 6

// showRun answers with everything known about one run.
func (g *Gateway) showRun(w http.ResponseWriter, r *request) *api.Problem {
	if p := g.runsThere(); p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	run, p := g.findRun(ctx, r, access.Read, r.value)
	if p != nil {
		return p
	}
	shown, p := g.showRuns(ctx, []tidemill.Run{*run})
	if p != nil {
		return p
	}
	whole := api.RunWhole{RunShown: shown[0]}
	if err := g.readLogParts(ctx, run, &whole); err != nil {
		return g.kafkaProblem(r.Context(), err)
	}
	writeJSON(w, http.StatusOK, whole)
	return nil
}

// findRun finds a run by its id, or the beginning of its id. The answer for a run that the caller
// may not touch is the same as for an unknown run.
func (g *Gateway) findRun(ctx context.Context, r *request, role access.Role, id string) (*tidemill.Run, *api.Problem) {
	if len(id) < shortestID {
		return nil, badParameter("run", "give the id of a run, or at least its first six letters")
	}
	run, err := g.opt.Ledger.Find(ctx, id)
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return nil, unknownRun(id)
	case errors.Is(err, ledger.ErrAmbiguous):
		return nil, badParameter("run", err.Error())
	case err != nil:
		return nil, g.ledgerProblem(r.Context(), err)
	case !r.caller.MayTouch(role, ownerOf(run)) && !r.caller.AllKeys(role):
		g.noteRefusal(r, role, "runs", forbidden("run "+run.ID+" is not of a key that the caller may "+string(role)))
		return nil, unknownRun(id)
	}
	return run, nil
}

// ownerOf returns the key whose callers may see a run; empty if only callers for all keys may.
func ownerOf(run *tidemill.Run) string { return tidemill.OwnerOf(run.Recipe, run.Key) }

// readLogParts reads the parts of a run that the ledger does not keep: the events that requested
// the run and, once the run has ended, its plan.
func (g *Gateway) readLogParts(ctx context.Context, run *tidemill.Run, whole *api.RunWhole) (err error) {
	asked, err := g.whatAsked(ctx, run, shownEvents)
	if err != nil {
		return err
	}
	whole.Events = asked.events
	if whole.Plan, err = g.planOf(ctx, run); err != nil {
		return err
	}
	if err := g.addStages(ctx, run, whole); err != nil {
		g.log.Debug("gateway: the stages of a run are not known; the answer has none", "run", run.ID, "reason", err)
	}
	return nil
}

// planOf returns the plan of a run; nil before the run has begun.
func (g *Gateway) planOf(ctx context.Context, run *tidemill.Run) (*tidemill.Plan, error) {
	switch {
	case run.Plan != nil:
		var plan tidemill.Plan
		return &plan, json.Unmarshal(run.Plan, &plan)
	case len(run.Attempts) == 0:
		return nil, nil
	}
	return g.planAt(ctx, run.Partition, run.Attempts[0].Offset)
}

const (
	mostFacts = 100      // facts of one run whose events are read
	factBytes = 16 << 10 // bytes of the log that are read at a time

	shownEvents   = 4 << 20   // bytes of events that are shown for a run
	retriedEvents = 512 << 10 // bytes of events that a retry copies, because they go into one fact
)

// runRequests holds the events that requested a run, as read from the log.
type runRequests struct {
	events      []json.RawMessage // the newest events, oldest first
	correlation string            // correlation id of the newest fact

	most, bytes int
}

// whatAsked reads the newest facts that requested a run. The parameter bytes limits the size of
// their events.
func (g *Gateway) whatAsked(ctx context.Context, run *tidemill.Run, bytes int) (*runRequests, error) {
	a := &runRequests{events: []json.RawMessage{}, most: bytes}
	offsets := run.Asked[max(0, len(run.Asked)-mostFacts):]
	return a, g.factsAt(ctx, run.Partition, offsets, a.take)
}

func (a *runRequests) take(e *broker.Incoming) error {
	var d tidemill.RunRequested
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return fmt.Errorf("read the fact at offset %d: %w", e.Offset, err)
	}
	if chain, ok := e.Attribute(tidemill.AttrCorrelationID); ok {
		a.correlation = strings.Clone(chain)
	}
	for _, event := range d.Events {
		a.events, a.bytes = append(a.events, event), a.bytes+len(event)
	}
	for len(a.events) > mostFacts || len(a.events) > 1 && a.bytes > a.most {
		a.bytes -= len(a.events[0])
		a.events = a.events[1:]
	}
	return nil
}

func (g *Gateway) planAt(ctx context.Context, partition int32, offset int64) (plan *tidemill.Plan, err error) {
	err = g.factsAt(ctx, partition, []int64{offset}, func(e *broker.Incoming) error {
		var d tidemill.RunStarted
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return fmt.Errorf("read the fact at offset %d: %w", offset, err)
		}
		plan = d.Plan
		return nil
	})
	return plan, err
}

// factsAt passes the facts at the given offsets of a partition to the function take, in order. Each
// read has its own timeout.
func (g *Gateway) factsAt(ctx context.Context, partition int32, offsets []int64, take func(*broker.Incoming) error) error {
	for len(offsets) > 0 {
		var failed error
		from := broker.Position{Stream: tidemill.StreamFacts, Partition: partition, Offset: offsets[0]}
		limited, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
		next, err := g.opt.Broker.Read(limited, from, worthReading(offsets), func(e *broker.Incoming) bool {
			offsets = notBefore(offsets, e.Offset)
			if len(offsets) > 0 && offsets[0] == e.Offset {
				offsets = offsets[1:]
				failed = take(e)
			}
			return len(offsets) > 0 && failed == nil
		})
		cancel()
		if err = cmp.Or(failed, err); err != nil {
			return err
		}
		if offsets = notBefore(offsets, next); next == from.Offset && len(offsets) > 0 {
			return fmt.Errorf("read stream %s, partition %d: there is nothing at offset %d", from.Stream, partition, next)
		}
	}
	return nil
}

// worthReading returns the number of bytes of the log to read at once. If the next fact is near,
// the read includes the records in between. Otherwise the result is 1, for which Kafka sends one
// batch, because no record after that batch is needed.
func worthReading(offsets []int64) int {
	const near = 100
	if len(offsets) > 1 && offsets[1]-offsets[0] < near {
		return factBytes
	}
	return 1
}

// notBefore removes the offsets that are before a given offset.
func notBefore(offsets []int64, at int64) []int64 {
	for len(offsets) > 0 && offsets[0] < at {
		offsets = offsets[1:]
	}
	return offsets
}
