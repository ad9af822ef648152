package agent

import (
	"errors"
	"fmt"

	"tidemill.dev"
	"tidemill.dev/internal/api"
)

// measured reads what the command has measured.
func (a *attempt) measured() error {
	all, left, err := metricsOf(a.dirs.out())
	if left > 0 {
		a.log.note("%s has %d numbers more than are kept: the first by their names are", metricsName, left)
	}
	a.metrics = all
	return err
}

// report says the last word.
func (a *attempt) report(err error) error {
	a.ends.over(0)
	if !a.party.first() {
		return a.leave(err)
	}
	if err != nil && a.ending == nil && a.order.Run != "" {
		a.log.note("%v", err) // who looks for the command's words finds why there are none
	}
	if err != nil && a.ending != nil && a.metrics == nil {
		a.metrics, _, _ = metricsOf(a.dirs.out()) // as far as it came; the failure is told already
	}
	a.log.close()
	if a.ends.isDead() {
		return ErrSuperseded
	}
	return a.say(a.lastWord(err))
}

// say tells of the end, and of a failure instead where the gateway does not take
// that.
func (a *attempt) say(word api.Finish) error {
	a.telling.Store(true)
	said := a.finish(word)
	if r := new(refusal); errors.As(said, &r) && !a.ends.isDead() {
		said = a.finish(instead(word, r))
	}
	if a.ends.isDead() {
		return ErrSuperseded
	}
	if said == nil {
		a.told = word.Outcome
	}
	return said
}

func (a *attempt) finish(f api.Finish) error {
	if err := a.door.tell(a.ends.last, "/finish", f, &api.Finished{}); err != nil {
		return fmt.Errorf("tell how attempt %s has ended (%s): %w", a.o.Attempt, f.Outcome, err)
	}
	return nil
}

// lastWord is how the attempt has ended.
func (a *attempt) lastWord(err error) api.Finish {
	f := api.Finish{Where: a.where, Inside: a.o.Inside, Files: []api.File{}, Result: tidemill.Result{
		Exit: -1, PeakMemory: a.peak, GPUSeconds: float64(a.gpus()) * a.seconds, Stages: a.stages, Metrics: a.metrics,
		LastLines: a.log.tail(), LogBytes: a.log.told, Cut: a.log.cut()}}
	f.Outcome, f.Reason, f.Permanent = verdict(a.ends.early(), err)
	if a.ending != nil {
		f.Result.Exit, f.Result.Signal = a.ending.exit, a.ending.signal
		if a.gear.Engine != "" && a.contained() {
			f.Where.Image = digestOf(a.gear.Engine, a.order.Plan.Image)
		}
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Files = append(f.Files, a.made...)
	}
	return f
}

// gpus is how many the attempt has held, at all of its workers.
func (a *attempt) gpus() int {
	n := len(a.gear.GPUs)
	if a.o.Inside {
		n = a.order.Plan.GPUs // a card that no program of its maker's lists is held all the same
	}
	return n * max(1, len(a.o.Workers))
}

// instead is what is said where the gateway does not take the last word: that
// can be, and without it the run would be taken for lost, and begun again.
func instead(f api.Finish, refused error) api.Finish {
	why := fmt.Sprintf("the gateway does not take how it ended: %v", refused)
	if f.Reason != "" {
		why = f.Reason + "; " + why
	}
	if f.Outcome == tidemill.OutcomeSucceeded {
		f.Outcome, f.Permanent = tidemill.OutcomeFailed, true
	}
	f.Reason, f.Files = why, []api.File{}
	f.Result.Metrics, f.Result.LastLines = nil, ""
	return f
}
