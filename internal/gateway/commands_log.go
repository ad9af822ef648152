package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/triggers/commands"
)

// listCommands answers with a page of the commands of people, newest first: those on the stream commands, and
// the changes of champions. The stream names triggers, recipes and pools, so a caller with limited keys sees
// only the changes of models with these keys.
func (g *Gateway) listCommands(w http.ResponseWriter, r *request) *api.Problem {
	values, p := r.parseQuery([]string{"after", "limit"})
	if p != nil {
		return p
	}
	limit, p := limitOf(values, mostOnOne, usualPage)
	if p != nil {
		return p
	}
	l := commandList{from: commandPlace{offset: newestCommand}, limit: limit}
	if after := values.Get("after"); after != "" {
		if l.from, p = parseCommandPlace(after); p != nil {
			return p
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Look)
	defer cancel()
	if l.from.offset != noCommand && r.caller.AllKeys(access.Read) {
		var err error
		if l.commands, l.next, err = commands.Log(ctx, g.opt.Broker, max(l.from.offset, 0), limit); err != nil {
			return g.followProblem(ctx, err, "the commands")
		}
	}
	if g.opt.Ledger != nil {
		var err error
		if l.changes, err = g.opt.Ledger.PersonChanges(ctx, l.from.before, limit, seenBy(r.caller, access.Read)); err != nil {
			return g.ledgerProblem(r.Context(), err)
		}
	}
	writeJSON(w, http.StatusOK, l.merge())
	return nil
}

// commandPlace is a place in the list of commands: an offset of the stream commands, and a time.
type commandPlace struct {
	offset int64
	before time.Time
}

const (
	newestCommand = -1 // offset of the first page
	noCommand     = 0  // offset of a page after the first command of the stream
)

func (p commandPlace) String() string {
	ns := int64(0)
	if !p.before.IsZero() {
		ns = p.before.UnixNano()
	}
	return fmt.Sprintf("%d.%d", p.offset, ns)
}

func parseCommandPlace(text string) (at commandPlace, p *api.Problem) {
	offset, before, found := strings.Cut(text, ".")
	n, err := strconv.ParseInt(offset, 10, 64)
	ns, timeErr := strconv.ParseInt(before, 10, 64)
	if !found || err != nil || timeErr != nil || n < newestCommand || ns < 0 {
		return at, badParameter("after", clipText(text)+" is no place in the list of commands; begin at the first page")
	}
	if at.offset = n; ns > 0 {
		at.before = time.Unix(0, ns)
	}
	return at, nil
}

// commandList has the newest commands and changes after a place, from which a page is made.
type commandList struct {
	from     commandPlace
	limit    int
	commands []commands.Command
	next     int64 // offset after these commands; 0 at the start of the stream
	changes  []ledger.PersonChange
}

// merge returns a page in the order of time.
func (l *commandList) merge() api.Commands {
	answer, i, j := api.Commands{Commands: []api.Command{}}, 0, 0
	for len(answer.Commands) < l.limit && i+j < len(l.commands)+len(l.changes) {
		if j == len(l.changes) || i < len(l.commands) && l.commands[i].At.After(l.changes[j].At) {
			answer.Commands = append(answer.Commands, shownCommand(&l.commands[i]))
			i++
			continue
		}
		answer.Commands = append(answer.Commands, shownChange(&l.changes[j]))
		j++
	}
	next := l.from
	switch {
	case i == len(l.commands):
		next.offset = l.next
	case i > 0:
		next.offset = l.commands[i-1].Offset
	}
	if j > 0 {
		next.before = l.changes[j-1].At
	}
	if i < len(l.commands) || l.next > 0 || j < len(l.changes) || len(l.changes) == l.limit {
		answer.Next = next.String()
	}
	return answer
}

// shownChange shows a change of a champion by a person.
func shownChange(c *ledger.PersonChange) api.Command {
	shown := api.Command{ID: c.Proposal, At: c.At, By: c.By, Subject: c.Model, Reason: c.Reason, Type: tidemill.TypeModelPromoted}
	verb := "promoted"
	switch c.Action {
	case tidemill.ActionRollback:
		shown.Type, verb = tidemill.TypeModelRolledBack, "restored by a rollback"
	case tidemill.ActionPin:
		shown.Type, verb = tidemill.TypeModelPinned, "pinned"
	}
	shown.Done = fmt.Sprintf("model %s: version %d %s", c.Model, c.Version, verb)
	if c.Before != c.Version {
		shown.Done += ", previously " + versionText(c.Before)
	}
	return shown
}

func shownCommand(c *commands.Command) api.Command {
	var d tidemill.CommandReason
	_ = json.Unmarshal(c.Data, &d) // most commands have no data
	return api.Command{ID: c.ID, At: c.At, By: c.By, Type: c.Type, Subject: c.Subject, Done: commandWords(c), Reason: d.Reason}
}

// commandWords describes a command in words.
func commandWords(c *commands.Command) string {
	switch c.Type {
	case tidemill.TypePromotionsFrozen, tidemill.TypePromotionsThawed:
		verb := strings.TrimPrefix(c.Type, "tidemill.promotions.")
		if c.Subject == tidemill.AllRecipes {
			return "promotions of all recipes " + verb
		}
		return "promotions of recipe " + c.Subject + " " + verb
	case tidemill.TypeTriggerReplayRequested:
		var d tidemill.Replay
		if json.Unmarshal(c.Data, &d) == nil && d.From != "" {
			return fmt.Sprintf("replay of trigger %s from %s to %s requested", c.Subject, d.From, orElse(d.To, "end"))
		}
		return "replay of trigger " + c.Subject + " requested"
	case tidemill.TypeEventReplayRequested:
		var d tidemill.LetterReplayData
		_ = json.Unmarshal(c.Data, &d) // then it has 0 dead letters
		return fmt.Sprintf("replay of %d dead letters of %s requested", len(d.Letters), c.Subject)
	}
	thing, verb, _ := strings.Cut(strings.TrimPrefix(c.Type, "tidemill."), ".")
	return thing + " " + c.Subject + " " + verb
}
