package commands

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

// Author writes commands in the name of a person. Its events are ready for [Publish].
type Author struct {
	Names tidemill.Names
	By    string // authid; empty if the gateway asks for no identity
	Now   time.Time
}

// PauseTrigger pauses a trigger: its events wait until it is resumed.
func (a Author) PauseTrigger(trigger string) broker.View {
	return a.of(tidemill.TypeTriggerPaused, tidemill.AttrTrigger, trigger, a.id(tidemill.TypeTriggerPaused, trigger), nil)
}

// ResumeTrigger resumes a trigger.
func (a Author) ResumeTrigger(trigger string) broker.View {
	return a.of(tidemill.TypeTriggerResumed, tidemill.AttrTrigger, trigger, a.id(tidemill.TypeTriggerResumed, trigger), nil)
}

// PauseSchedule pauses a schedule.
func (a Author) PauseSchedule(schedule string) broker.View {
	return a.of(tidemill.TypeSchedulePaused, tidemill.AttrSchedule, schedule, a.id(tidemill.TypeSchedulePaused, schedule), nil)
}

// ResumeSchedule resumes a schedule.
func (a Author) ResumeSchedule(schedule string) broker.View {
	return a.of(tidemill.TypeScheduleResumed, tidemill.AttrSchedule, schedule, a.id(tidemill.TypeScheduleResumed, schedule), nil)
}

// PauseRecipe pauses a recipe: none of its runs begins.
func (a Author) PauseRecipe(recipe string) broker.View {
	return a.of(tidemill.TypeRecipePaused, tidemill.AttrRecipe, recipe, a.id(tidemill.TypeRecipePaused, recipe), nil)
}

// ResumeRecipe resumes a recipe.
func (a Author) ResumeRecipe(recipe string) broker.View {
	return a.of(tidemill.TypeRecipeResumed, tidemill.AttrRecipe, recipe, a.id(tidemill.TypeRecipeResumed, recipe), nil)
}

// PausePool pauses a pool: no attempt begins in it.
func (a Author) PausePool(pool string) broker.View {
	return a.of(tidemill.TypePoolPaused, tidemill.AttrPool, pool, a.id(tidemill.TypePoolPaused, pool), nil)
}

// ResumePool resumes a pool.
func (a Author) ResumePool(pool string) broker.View {
	return a.of(tidemill.TypePoolResumed, tidemill.AttrPool, pool, a.id(tidemill.TypePoolResumed, pool), nil)
}

// FreezePromotions stops gates from promoting versions of one recipe, or of all.
func (a Author) FreezePromotions(recipe, reason string) (broker.View, error) {
	return a.promotions(tidemill.TypePromotionsFrozen, recipe, reason)
}

// ThawPromotions ends FreezePromotions.
func (a Author) ThawPromotions(recipe, reason string) (broker.View, error) {
	return a.promotions(tidemill.TypePromotionsThawed, recipe, reason)
}

func (a Author) promotions(typ, recipe, reason string) (broker.View, error) {
	data, err := json.Marshal(tidemill.CommandReason{Reason: reason})
	if err != nil {
		return broker.View{}, fmt.Errorf("write command %s of recipe %s: %w", typ, recipe, err)
	}
	return a.of(typ, tidemill.AttrRecipe, recipe, a.id(typ, recipe), data), nil
}

// Replay requests the delivery of a past range to a trigger. Two requests for the same
// range are two replays, because the first may have ended.
func (a Author) Replay(r tidemill.Replay) (broker.View, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return broker.View{}, fmt.Errorf("write the replay of trigger %s: %w", r.Trigger, err)
	}
	return a.of(tidemill.TypeTriggerReplayRequested, tidemill.AttrTrigger, r.Trigger,
		a.id(tidemill.TypeTriggerReplayRequested, r.Trigger, string(data)), data), nil
}

// MaxLetters is the largest number of dead letters in one command.
const MaxLetters = 5000

// ReplayLetters requests the delivery of dead letters. The id derives only from the dead letters,
// so a second request is the same command: if the delivery fails again, there is a new dead letter.
func (a Author) ReplayLetters(d tidemill.LetterReplayData) (broker.View, error) {
	if len(d.Letters) == 0 || len(d.Letters) > MaxLetters {
		return broker.View{}, fmt.Errorf("replay %d dead letters in one command: give 1 to %d", len(d.Letters), MaxLetters)
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

// Replayed reports the end of a replay. Its id derives from the command, so all reports
// of it are the same.
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

// component is the author of commands: the gateway, where people send them.
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

// Publish writes a command to its stream and returns its place once all in-sync replicas have it.
func Publish(ctx context.Context, p *broker.Producer, v *broker.View) (broker.Position, error) {
	r, err := p.Publish(ctx, tidemill.StreamCommands, v)
	return r.Position(), err
}

func readLetters(v *broker.View) ([]tidemill.LetterRef, error) {
	if v.Type != tidemill.TypeEventReplayRequested {
		return nil, fmt.Errorf("read command %s: it is of type %s and replays no dead letters", v.ID, v.Type)
	}
	var d tidemill.LetterReplayData
	if err := json.Unmarshal(v.Data, &d); err != nil {
		return nil, fmt.Errorf("read command %s: %w", v.ID, err)
	}
	return d.Letters, nil
}
