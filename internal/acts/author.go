package acts

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// Author writes acts in somebody's name. The events it makes are ready for
// [Publish].
type Author struct {
	Names tidemill.Names
	By    string // authid; empty where the door is open
	Now   time.Time
}

// PauseTrigger lets a trigger's events wait.
func (a Author) PauseTrigger(trigger string) broker.View {
	return a.of(tidemill.TypeTriggerPaused, tidemill.AttrTrigger, trigger, a.id(tidemill.TypeTriggerPaused, trigger), nil)
}

// ResumeTrigger ends it.
func (a Author) ResumeTrigger(trigger string) broker.View {
	return a.of(tidemill.TypeTriggerResumed, tidemill.AttrTrigger, trigger, a.id(tidemill.TypeTriggerResumed, trigger), nil)
}

// PauseSchedule lets a schedule rest.
func (a Author) PauseSchedule(schedule string) broker.View {
	return a.of(tidemill.TypeSchedulePaused, tidemill.AttrSchedule, schedule, a.id(tidemill.TypeSchedulePaused, schedule), nil)
}

// ResumeSchedule ends it.
func (a Author) ResumeSchedule(schedule string) broker.View {
	return a.of(tidemill.TypeScheduleResumed, tidemill.AttrSchedule, schedule, a.id(tidemill.TypeScheduleResumed, schedule), nil)
}

// PauseRecipe has none of a recipe's runs begin.
func (a Author) PauseRecipe(recipe string) broker.View {
	return a.of(tidemill.TypeRecipePaused, tidemill.AttrRecipe, recipe, a.id(tidemill.TypeRecipePaused, recipe), nil)
}

// ResumeRecipe ends it.
func (a Author) ResumeRecipe(recipe string) broker.View {
	return a.of(tidemill.TypeRecipeResumed, tidemill.AttrRecipe, recipe, a.id(tidemill.TypeRecipeResumed, recipe), nil)
}

// PausePool has no attempt begin in a pool.
func (a Author) PausePool(pool string) broker.View {
	return a.of(tidemill.TypePoolPaused, tidemill.AttrPool, pool, a.id(tidemill.TypePoolPaused, pool), nil)
}

// ResumePool ends it.
func (a Author) ResumePool(pool string) broker.View {
	return a.of(tidemill.TypePoolResumed, tidemill.AttrPool, pool, a.id(tidemill.TypePoolResumed, pool), nil)
}

// FreezePromotions has no version of a recipe, or of any, promoted by its gate.
func (a Author) FreezePromotions(recipe, reason string) (broker.View, error) {
	return a.promotions(tidemill.TypePromotionsFrozen, recipe, reason)
}

// ThawPromotions ends it.
func (a Author) ThawPromotions(recipe, reason string) (broker.View, error) {
	return a.promotions(tidemill.TypePromotionsThawed, recipe, reason)
}

func (a Author) promotions(typ, recipe, reason string) (broker.View, error) {
	data, err := json.Marshal(tidemill.ActReason{Reason: reason})
	if err != nil {
		return broker.View{}, fmt.Errorf("write act %s of recipe %s: %w", typ, recipe, err)
	}
	return a.of(typ, tidemill.AttrRecipe, recipe, a.id(typ, recipe), data), nil
}

// Replay asks that a trigger gets a past range again. Two who ask for the same
// range ask for two replays: the first may have ended.
func (a Author) Replay(r tidemill.Replay) (broker.View, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the replay of trigger %s: %w", r.Trigger, err)
	}
	return a.of(tidemill.TypeTriggerReplayRequested, tidemill.AttrTrigger, r.Trigger,
		a.id(tidemill.TypeTriggerReplayRequested, r.Trigger, string(data)), data), nil
}

// MaxLetters is how many letters one act names at most; more are several acts.
const MaxLetters = 5000

// ReplayLetters asks that dead letters are delivered after all. The id follows
// from the letters alone, so asking twice is asking once: what fails again
// becomes a letter of its own.
func (a Author) ReplayLetters(d tidemill.LetterReplayData) (broker.View, error) {
	if len(d.Letters) == 0 || len(d.Letters) > MaxLetters {
		return broker.View{}, fmt.Errorf("ask to replay %d dead letters in one act: give 1 to %d", len(d.Letters), MaxLetters)
	}
	data, err := json.Marshal(d)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the replay of %d dead letters: %w", len(d.Letters), err)
	}
	ids := make([]string, len(d.Letters))
	for i, l := range d.Letters {
		ids[i] = l.ID
	}
	slices.Sort(ids)
	id := tidemill.ID(append(ids, tidemill.TypeEventReplayRequested, d.Trigger)...)
	return a.of(tidemill.TypeEventReplayRequested, tidemill.AttrTrigger, d.Trigger, id, data), nil
}

// Replayed tells that a replay has come to its end. Its id follows from the
// act, so all who notice tell the same.
func Replayed(names tidemill.Names, r tidemill.Replay, d tidemill.ReplayedData, now time.Time) (broker.View, error) {
	d.Trigger, d.Replay = r.Trigger, r.ID
	data, err := json.Marshal(d)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the end of replay %s: %w", r.ID, err)
	}
	a := Author{Names: names, Now: now}
	v := a.of(tidemill.TypeTriggerReplayed, tidemill.AttrTrigger, r.Trigger, tidemill.ID(tidemill.TypeTriggerReplayed, r.ID), data)
	v.Source = names.Source("dispatcher")
	v.Extensions = append(v.Extensions,
		broker.Attribute{Name: tidemill.AttrCausationID, Value: r.ID},
		broker.Attribute{Name: tidemill.AttrCausationSource, Value: names.Source(component)})
	return v, nil
}

// component is who writes acts: the gateway, where people come in.
const component = "gateway"

func (a Author) id(parts ...string) string {
	return tidemill.ID(append(parts, a.By, strconv.FormatInt(a.Now.UnixNano(), 10))...)
}

func (a Author) of(typ, attribute, subject, id string, data []byte) broker.View {
	v := broker.View{ID: id, Source: a.Names.Source(component), Type: typ, Subject: subject,
		Time: a.Now.UTC().Format(time.RFC3339Nano), Data: data,
		Extensions: []broker.Attribute{{Name: attribute, Value: subject}, {Name: tidemill.AttrCorrelationID, Value: id}}}
	if data != nil {
		v.DataContentType, v.DataSchema = "application/json", tidemill.Schema(typ)
	}
	if a.By != "" {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrAuthID, Value: a.By})
	}
	return v
}

// Publish puts an act on its stream and returns where it lies, once all in-sync
// replicas have it.
func Publish(ctx context.Context, p *broker.Producer, v *broker.View) (broker.Position, error) {
	r, err := p.Publish(ctx, tidemill.StreamActs, v)
	return r.Position(), err
}

func readLetters(v *broker.View) ([]tidemill.LetterRef, error) {
	if v.Type != tidemill.TypeEventReplayRequested {
		return nil, fmt.Errorf("read act %s: it is of type %s and replays no dead letters", v.ID, v.Type)
	}
	var d tidemill.LetterReplayData
	if err := json.Unmarshal(v.Data, &d); err != nil {
		return nil, fmt.Errorf("read act %s: %w", v.ID, err)
	}
	return d.Letters, nil
}
