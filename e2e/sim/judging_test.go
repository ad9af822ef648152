package sim

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// decision is an accepted change of a model, as its announcement has it.
type decision struct {
	kind, model, key string // kind is promoted, refused, awaiting, canary, rolled-back or begun
	Proposal         string
	Version          int
	Champion, Before int
	Turn             int64
	Reason           string
	Origin           struct {
		Run, Rollout string
		Attempt      int
	}
}

// decisions returns the changes of each model, in the order of their turns. An announcement may be on the log twice.
func (o *oracle) decisions() map[string][]*decision {
	all, seen := map[string][]*decision{}, map[string]bool{}
	for i := range o.records["facts"] {
		r := &o.records["facts"][i]
		kind, isModel := strings.CutPrefix(r.typ(), "tidemill.model.")
		kind, isTrial := strings.CutPrefix(kind, "tidemill.trial.")
		if !isModel && !isTrial || !slices.Contains([]string{"promoted", "refused", "awaiting", "canary", "rolled-back", "begun"}, kind) {
			continue
		}
		d := &decision{kind: kind, model: r.head["ce_model"], key: r.key()}
		if err := json.Unmarshal([]byte(r.value), d); err != nil || seen[kind+d.Proposal+strconv.Itoa(d.Version)] {
			continue // an announcement that cannot be read is missed below
		}
		seen[kind+d.Proposal+strconv.Itoa(d.Version)] = true
		all[d.model] = append(all[d.model], d)
	}
	for _, of := range all {
		slices.SortStableFunc(of, func(a, b *decision) int { return cmp.Compare(a.Turn, b.Turn) })
	}
	return all
}

// proposal is a fact that proposes a change of a model.
type proposal struct {
	at        time.Time
	Action    string
	Version   int
	Judgement struct {
		Passed bool
		Trial  *verdict
	}
}

// verdict is the end of a trial.
type verdict struct {
	Champion int
	Outcome  string
	Read     []struct {
		Stream    string
		Partition int32
		From, To  int64
	}
	Answered, Agreed, Labelled, Wins, Losses, Errors int
}

// proposals returns the first record of each proposal, by its id.
func (o *oracle) proposals() map[string]*proposal {
	all := map[string]*proposal{}
	for i := range o.records["facts"] {
		if r := &o.records["facts"][i]; r.typ() == "tidemill.model.promotion-proposed" && all[r.id()] == nil {
			p := &proposal{at: r.at}
			if json.Unmarshal([]byte(r.value), p) == nil {
				all[r.id()] = p
			}
		}
	}
	return all
}

// reign is the time of a champion, with the canaries beside it.
type reign struct {
	champion int
	begins   time.Time
	canaries map[int]time.Time
}

func (r reign) String() string {
	return fmt.Sprintf("%d beside %v", r.champion, slices.Sorted(maps.Keys(r.canaries)))
}

// reigns returns the champions of a model in their order. They may begin earlier by the difference of the clocks.
func reigns(of []*decision, proposed map[string]*proposal, clocksDiffer time.Duration) (all []reign) {
	for _, d := range of {
		p := proposed[d.Proposal]
		if p == nil {
			p = &proposal{}
		}
		at := p.at.Add(-clocksDiffer)
		switch d.kind {
		case "promoted", "rolled-back":
			all = append(all, reign{d.Champion, at, map[int]time.Time{}})
		case "canary":
			if n := len(all); n > 0 {
				all[n-1].canaries[d.Version] = at
			}
		}
	}
	return all
}

// allows reports whether a version may answer an event of a user at a time. A canary has the users whose hash is below
// its share.
func (r *reign) allows(model string, version int, user string, at time.Time, share float64) bool {
	since, is := r.canaries[version]
	if version == r.champion {
		return !at.Before(r.begins.Truncate(time.Millisecond))
	}
	return is && !at.Before(since.Truncate(time.Millisecond)) && hashed("canary", fmt.Sprintf("%s@%d", model, version), user) < share
}

// hashed returns a place from 0 to 1 that depends on the texts alone.
func hashed(of ...string) float64 {
	h := sha256.New()
	for _, text := range of {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text))))
		h.Write([]byte(text))
	}
	return float64(binary.BigEndian.Uint64(h.Sum(nil))>>11) / (1 << 53)
}

// judged checks that each registered version is promoted or refused once, also after a trial and a canary.
func (o *oracle) judged() (all []string) {
	ends, others := map[string][]string{}, map[string]int{}
	for _, of := range o.decisions() {
		for _, d := range of {
			switch d.kind {
			case "promoted", "refused", "awaiting":
				ends[d.Origin.Run] = append(ends[d.Origin.Run], d.kind)
			case "canary", "begun":
				if others[d.kind+d.Origin.Run]++; others[d.kind+d.Origin.Run] > 1 {
					all = append(all, fmt.Sprintf("version %d of %s has two announcements that it is on trial or a canary: %s", d.Version, d.model, d.kind))
				}
			}
		}
	}
	for i := range o.records["facts"] {
		if r := &o.records["facts"][i]; r.typ() == "tidemill.model.registered" && len(ends[r.head["ce_run"]]) != 1 {
			all = append(all, fmt.Sprintf("the version of run %s of %s has %d ends: %v", r.head["ce_run"], r.head["ce_model"], len(ends[r.head["ce_run"]]), ends[r.head["ce_run"]]))
		}
	}
	return all
}

// tried checks the verdicts of trials: each fits what was announced, and its counts are those of the records that it names.
func (o *oracle) tried() (all []string) {
	proposed := o.proposals()
	for model, of := range o.decisions() {
		labels := map[int]string{} // what each version answers
		for _, d := range of {
			if r := o.w.agents.runs[d.Origin.Run]; r != nil {
				labels[d.Version] = r.labels[strconv.Itoa(d.Origin.Attempt)]
			}
		}
		for _, d := range of {
			p := proposed[d.Proposal]
			if p == nil || p.Action != "conclude" || p.Judgement.Trial == nil || d.Version != p.Version {
				continue
			}
			v, name := p.Judgement.Trial, fmt.Sprintf("%s@%d", model, d.Version)
			if passed := v.Outcome == "passed"; passed != p.Judgement.Passed || !passed && d.kind != "refused" {
				all = append(all, fmt.Sprintf("the trial of %s ended %q, and the version is %s", name, v.Outcome, d.kind))
			}
			n := o.recount(model, v, labels[d.Version], labels[v.Champion])
			same := n == [...]int{v.Answered, v.Agreed, v.Labelled, v.Wins, v.Losses, v.Errors}
			if !same && v.Outcome != "given up" || v.Answered > n[0] { // one that is given up may not have read all
				all = append(all, fmt.Sprintf("the verdict on %s against version %d counts %+v, and its records have %v", name, v.Champion, *v, n))
			}
		}
	}
	return all
}

// recount counts the answered, agreed, labelled, won and lost events and the errors of a trial.
func (o *oracle) recount(model string, v *verdict, candidate, champion string) (n [6]int) {
	within := func(stream string, r *record) bool {
		for _, part := range v.Read {
			if part.Stream == stream && part.Partition == r.partition && r.offset >= part.From && r.offset < part.To {
				return true
			}
		}
		return false
	}
	truths := map[string]string{}
	for i := range o.records["outcomes"] {
		var d struct{ Model, Place, Truth string }
		if r := &o.records["outcomes"][i]; within("outcomes", r) && json.Unmarshal([]byte(r.value), &d) == nil && d.Model == model {
			truths[d.Place] = d.Truth
		}
	}
	for i := range o.records["scored"] {
		r := &o.records["scored"][i]
		if r.typ() != "tidemill.scored" || r.head["ce_model"] != model || r.head["ce_modelversion"] != strconv.Itoa(v.Champion) || !within("scored", r) {
			continue
		}
		n[0]++
		if candidate == champion {
			n[1]++
		}
		truth := truths[r.id()]
		switch {
		case truth == "":
			continue
		case candidate == truth && champion != truth:
			n[3]++
		case candidate != truth && champion == truth:
			n[4]++
		}
		n[2]++
	}
	return n
}

// rejudged checks that a gateway computes each verdict of a trial again.
func (o *oracle) rejudged() (all []string) {
	proposed, done := o.proposals(), 0
	for model, of := range o.decisions() {
		for _, d := range of {
			p := proposed[d.Proposal]
			if p == nil || p.Action != "conclude" || p.Judgement.Trial == nil || p.Judgement.Trial.Outcome == "given up" || d.Version != p.Version {
				continue
			}
			status, text, err := o.get(o.w.doors()[0], fmt.Sprintf("/api/v1/model/rejudge?model=%s&version=%d", url.QueryEscape(model), d.Version))
			var again struct{ Differs []string }
			switch {
			case status == 404 || err == nil && status == 400 && strings.Contains(text, "no verdict"):
				continue // the version is not kept any more, or its canary has been judged since
			case err == nil && status == 200:
				err = json.Unmarshal([]byte(text), &again)
			}
			if done++; err != nil || status != 200 || len(again.Differs) > 0 {
				all = append(all, fmt.Sprintf("the verdict on %s@%d, computed again: %d %v %.2000s", model, d.Version, status, err, text))
			}
		}
	}
	kinds := map[string]int{}
	for _, of := range o.decisions() {
		for _, d := range of {
			kinds[d.kind]++
		}
	}
	o.w.history.say("%d verdicts were computed again; models: %v", done, kinds)
	return all
}

func (o *oracle) get(door *process, path string) (status int, text string, err error) {
	c := o.w.client(o.w.chaos, door)
	defer c.CloseIdleConnections()
	res, err := c.Get(gatewayURL + path)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// rollout is the state of a rollout by the stream commands.
type rollout struct {
	way   string  // variable WAY of its runs
	share float64 // greatest share
	ended string  // done, aborted or removed; stopped if its keys go back; empty if it goes on
}

// rolledOut checks that only keys of the cohort got the way of a rollout, and that the cohort of one that was stopped or
// aborted went back, each key once.
func (o *oracle) rolledOut() (all []string) {
	if o.w.p.judging.rollout == "" {
		return nil
	}
	rollouts, base, wrong := o.rollouts()
	all = append(all, wrong...)
	for name, r := range o.w.agents.runs {
		if r.recipe != "intent" { // the recipe with a rollout
			continue
		}
		allowed := base[r.way]
		for _, of := range rollouts {
			allowed = allowed || of.way == r.way && hashed("cohort", r.recipe, r.key) < of.share
		}
		if !allowed {
			all = append(all, fmt.Sprintf("run %s of %s was made in way %s, which only other keys have", name, r.key, r.way))
		}
	}
	for model, of := range o.decisions() {
		all = append(all, o.rolledBack(model, of, rollouts)...)
	}
	return all
}

// rollouts returns the rollouts by name, and the ways that all keys have had.
func (o *oracle) rollouts() (named map[string]*rollout, base map[string]bool, wrong []string) {
	named, base = map[string]*rollout{}, map[string]bool{}
	for i := range o.records["commands"] {
		r := &o.records["commands"][i]
		kind, is := strings.CutPrefix(r.typ(), "tidemill.rollout.")
		var d struct {
			Rollout, Result string
			Share           float64
			Way             struct {
				Made struct{ Env struct{ WAY string } }
			}
		}
		if !is || json.Unmarshal([]byte(r.value), &d) != nil {
			continue
		}
		one := named[d.Rollout]
		switch {
		case d.Result == "adopted":
			if len(base) > 0 {
				continue // another controller was faster
			}
			base[d.Way.Made.Env.WAY] = true
			for generation, at := range o.w.changes { // runs before it had the way of the config
				if !at.After(r.at.Add(time.Millisecond)) {
					base[strconv.Itoa(generation)] = true
				}
			}
		case kind == "begun" && one == nil:
			named[d.Rollout] = &rollout{way: d.Way.Made.Env.WAY, share: d.Share}
		case one == nil:
			wrong = append(wrong, fmt.Sprintf("%s of %q, which has not begun", r.typ(), d.Rollout))
		case kind == "ended" && one.ended == d.Result: // another controller has decided the same
		case one.ended != "" && one.ended != "stopped":
			wrong = append(wrong, fmt.Sprintf("%s of %s, which has ended: %s", r.typ(), d.Rollout, one.ended))
		case kind == "advanced":
			one.share = max(one.share, d.Share)
		case kind == "stopped" || kind == "aborted":
			one.ended = "stopped"
		case kind == "ended":
			if one.ended = d.Result; d.Result == "done" {
				base[one.way] = true
			}
		}
	}
	return named, base, wrong
}

// rolledBack checks the rollbacks of one model.
func (o *oracle) rolledBack(model string, of []*decision, rollouts map[string]*rollout) (all []string) {
	made, back, champion := map[int]string{}, map[int]int{}, 0 // rollout of each version; number of times that it was rolled back
	before := map[string]int{}                                 // champion before the first version of a rollout was promoted
	for _, d := range of {
		if d.kind != "rolled-back" && d.Origin.Rollout != "" {
			made[d.Version] = d.Origin.Rollout
		}
		if d.kind != "promoted" && d.kind != "rolled-back" {
			continue
		}
		champion = d.Champion
		if d.kind == "promoted" {
			if name := made[champion]; name != "" && before[name] == 0 && made[d.Before] != name {
				before[name] = d.Before
			}
			continue
		}
		r := rollouts[made[d.Before]]
		if back[d.Before]++; back[d.Before] > 1 {
			all = append(all, fmt.Sprintf("%s was rolled back %d times from version %d", model, back[d.Before], d.Before))
		}
		if key := strings.TrimPrefix(model, "intent/"); r == nil || r.ended != "stopped" && r.ended != "aborted" || hashed("cohort", "intent", key) >= r.share {
			all = append(all, fmt.Sprintf("%s was rolled back from version %d to %d, and no rollout of its key was stopped: %+v", model, d.Before, d.Champion, r))
		}
	}
	if r := rollouts[made[champion]]; r != nil && (r.ended == "stopped" || r.ended == "aborted") && before[made[champion]] > 0 {
		all = append(all, fmt.Sprintf("the champion of %s is version %d of rollout %s, which is %s", model, champion, made[champion], r.ended))
	}
	return all
}

// A version of an aborted rollout stays the champion only if its model had none before.
func TestOracleOfRollbacks(t *testing.T) {
	t.Parallel()
	rollouts := map[string]*rollout{"intent/1": {share: 1, ended: "aborted"}, "intent/2": {share: 1, ended: "stopped"}}
	of := func(kind string, version, champion, before int, rollout string) *decision {
		d := &decision{kind: kind, Version: version, Champion: champion, Before: before}
		d.Origin.Rollout = rollout
		return d
	}
	first, second := of("promoted", 1, 1, 0, "intent/1"), of("promoted", 2, 2, 1, "intent/2")
	for name, c := range map[string]struct {
		decisions []*decision
		wrong     int
	}{
		"the first version":         {[]*decision{first}, 0},
		"a later one":               {[]*decision{of("promoted", 1, 1, 0, ""), second}, 1},
		"back to the first version": {[]*decision{first, second, of("rolled-back", 1, 1, 2, "")}, 0},
		"back twice":                {[]*decision{first, second, of("rolled-back", 1, 1, 2, ""), of("rolled-back", 1, 1, 2, "")}, 1},
		"back from a version that was no rollout's": {[]*decision{of("promoted", 1, 1, 0, ""), of("promoted", 2, 2, 1, ""), of("rolled-back", 1, 1, 2, "")}, 1},
	} {
		if all := (&oracle{}).rolledBack("intent/k", c.decisions, rollouts); len(all) != c.wrong {
			t.Errorf("%s: %d errors, want %d: %q", name, len(all), c.wrong, all)
		}
	}
}
