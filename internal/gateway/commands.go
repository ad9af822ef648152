package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/triggers/commands"
	"tidemill.dev/triggers/deadletters"
)

// commandState holds the commands so far and the dead letters. The stream of each is read when a
// request first needs it, and followed from then on.
type commandState struct {
	acts lazyValue[*commands.Follower]
	book lazyValue[*deadletters.Book]
}

func (g *Gateway) openDesk() {
	d := &g.desk
	d.acts.open = func(ctx context.Context) (*commands.Follower, error) {
		return commands.FollowKeys(ctx, g.opt.Broker, g.log)
	}
	d.acts.close = func(ctx context.Context, f *commands.Follower) error { return f.Close(ctx) }
	d.book.open = func(ctx context.Context) (*deadletters.Book, error) {
		return deadletters.Open(ctx, g.opt.Broker, g.log)
	}
	d.book.close = func(ctx context.Context, b *deadletters.Book) error { return b.Close(ctx) }
}

// installNames returns the install's names. A config that applies always has a valid name.
func (g *Gateway) installNames() tidemill.Names {
	n, _ := g.opt.Config().Names()
	return n
}

func (d *commandState) close(ctx context.Context) error {
	return errors.Join(d.acts.closeValue(ctx), d.book.closeValue(ctx))
}

// deadLetters returns the open dead letters. Reading the letters may take longer than the first
// caller can wait; the reading then continues without that caller.
func (g *Gateway) deadLetters(ctx context.Context) (*deadletters.Book, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	b, err := g.desk.book.get(ctx)
	if err != nil {
		return nil, g.followProblem(ctx, err, "the dead letters")
	}
	return b, nil
}

// commandLog returns the commands so far.
func (g *Gateway) commandLog(ctx context.Context) (*commands.Follower, *api.Problem) {
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	f, err := g.desk.acts.get(ctx)
	if err != nil {
		return nil, g.followProblem(ctx, err, "the commands")
	}
	return f, nil
}

// currentCommands returns the commands up to the present end of their stream, because another gateway may just
// have written one.
func (g *Gateway) currentCommands(ctx context.Context) (*commands.Follower, *api.Problem) {
	f, p := g.commandLog(ctx)
	if p != nil {
		return nil, p
	}
	ctx, cancel := context.WithTimeout(ctx, g.opt.Limits.Look)
	defer cancel()
	ends, err := g.opt.Broker.Ends(ctx, tidemill.StreamCommands)
	if err != nil {
		return nil, g.followProblem(ctx, err, "the commands")
	}
	g.untilRead(ctx, f, broker.Position{Offset: ends[0].Offset - 1})
	return f, nil
}

func (g *Gateway) followProblem(ctx context.Context, err error, what string) *api.Problem {
	if ctx.Err() != nil {
		return unavailable(what + ": they are still being read, or Kafka is down; try again later")
	}
	g.log.Warn("gateway: reading a stream failed", "what", what, "reason", err)
	return unavailable(what + " cannot be read now; try again later")
}

// commandAuthor returns an author that writes commands in the caller's name.
func (g *Gateway) commandAuthor(r *request) commands.Author {
	return commands.Author{Names: g.installNames(), By: r.callerName(), Now: time.Now()}
}

// publishAct publishes a command and returns its position.
func (g *Gateway) publishAct(r *request, v *broker.View) (broker.Position, *api.Problem) {
	span := g.startSpan(r)
	defer span.End()
	telemetry.Remember(r.trace, v)
	ctx, cancel := context.WithTimeout(r.Context(), g.opt.Limits.Ack)
	defer cancel()
	began := time.Now()
	at, err := commands.Publish(ctx, g.opt.Producer, v)
	if err != nil {
		return at, g.commandProblem(v, err, time.Since(began))
	}
	g.log.Info("gateway: command", "type", v.Type, "event", v.ID, "key", v.Subject, "by", r.loggedName())
	return at, nil
}

// commandProblem is the problem of a command or a receipt that Kafka did not store.
func (g *Gateway) commandProblem(v *broker.View, err error, after time.Duration) *api.Problem {
	switch {
	case errors.Is(err, broker.ErrInDoubt):
		p := inDoubt(v.ID, after)
		p.Detail = fmt.Sprintf("command %q: Kafka did not confirm it within %s; look whether it has taken effect, or send the request again, with the same %s if you gave one",
			clipText(v.ID), roughly(after), api.HeaderIdempotencyKey)
		return p
	case errors.Is(err, broker.ErrTooLarge):
		return tooLarge(err.Error())
	}
	g.log.Warn("gateway: writing a command failed", "type", v.Type, "event", v.ID, "reason", err)
	return unavailable("Kafka does not accept the command now; try again later: no command is written twice")
}

// maxCommandBody is the largest body of a command, in bytes.
const maxCommandBody = 2 << 20

// readCommand reads a JSON body and refuses unknown fields, because without such a field the
// command would do something that the caller did not mean.
func (g *Gateway) readCommand(r *request, to any) *api.Problem {
	body, p := g.readBody(r, min(maxCommandBody, g.opt.Limits.maxJSON()), func() *api.Problem {
		return tooLarge(fmt.Sprintf("the body may have %d bytes: send several requests", min(maxCommandBody, g.opt.Limits.maxJSON())))
	})
	if p != nil {
		return p
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return invalidRequest("the body is invalid: " + clipText(strings.TrimPrefix(err.Error(), "json: ")) + "; see /api/v1/openapi.json")
	}
	if d.More() {
		return invalidRequest("the body has more text after the JSON; send one object")
	}
	return nil
}

// badRate bounds a rate as the config does, because a replay at a tiny rate would run for years and
// cannot be cancelled.
func badRate(rate float64) *api.Problem {
	const least, most = 1.0 / 3600, 100_000
	if rate == 0 || rate >= least && rate <= most {
		return nil
	}
	return badParameter("rate", fmt.Sprintf("%v is not a rate; give a number per second, from one an hour (%.6f) to %d, or leave it out", rate, least, most))
}

func positionOf(p broker.Position) api.Position {
	return api.Position{Stream: p.Stream, Partition: p.Partition, Offset: p.Offset}
}

// lazyValue opens a value when it is first needed. Most gateways never need the dead letters, and
// need not hold them in memory.
type lazyValue[T any] struct {
	open  func(context.Context) (T, error)
	close func(context.Context, T) error

	mu      sync.Mutex
	closed  bool
	stop    context.CancelFunc
	opening *openAttempt[T]
}

// openAttempt is one attempt to open the value. Its fields are set before done is closed.
type openAttempt[T any] struct {
	done chan struct{}
	it   T
	err  error
}

// get waits for the value as long as the context allows. All callers share one attempt to open it,
// so the attempt continues when a caller leaves. After an error, the next caller tries again.
func (l *lazyValue[T]) get(ctx context.Context) (it T, err error) {
	o, err := l.begun()
	if err != nil {
		return it, err
	}
	select {
	case <-o.done:
		return o.it, o.err
	case <-ctx.Done():
		return it, context.Cause(ctx)
	}
}

func (l *lazyValue[T]) begun() (*openAttempt[T], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosing
	}
	if l.opening != nil && !l.opening.failed() {
		return l.opening, nil
	}
	o := &openAttempt[T]{done: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	l.opening, l.stop = o, stop
	go func() {
		defer close(o.done)
		o.it, o.err = l.open(ctx)
	}()
	return o, nil
}

func (o *openAttempt[T]) failed() bool {
	select {
	case <-o.done:
		return o.err != nil
	default:
		return false
	}
}

// closeValue stops an attempt to open the value, and closes an open value.
func (l *lazyValue[T]) closeValue(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	o, stop := l.opening, l.stop
	l.mu.Unlock()
	if o == nil {
		return nil
	}
	stop()
	<-o.done
	if o.err != nil {
		return nil // the callers got the error
	}
	return l.close(ctx, o.it)
}

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
		if l.changes, err = g.opt.Ledger.PersonChanges(ctx, l.from.changes, limit, seenBy(r.caller, access.Read)); err != nil {
			return g.ledgerProblem(r.Context(), err)
		}
	}
	writeJSON(w, http.StatusOK, l.merge())
	return nil
}

// commandPlace is a place in the list of commands: an offset of the stream commands, and a place among the changes
// of champions.
type commandPlace struct {
	offset  int64
	changes ledger.PersonPlace
}

const (
	newestCommand = -1 // offset of the first page
	noCommand     = 0  // offset of a page after the first command of the stream
)

func (p commandPlace) String() string {
	ns := int64(0)
	if !p.changes.At.IsZero() {
		ns = p.changes.At.UnixNano()
	}
	return fmt.Sprintf("%d.%d.%s", p.offset, ns, p.changes.Model)
}

func parseCommandPlace(text string) (at commandPlace, p *api.Problem) {
	offset, rest, found := strings.Cut(text, ".")
	before, model, _ := strings.Cut(rest, ".")
	n, err := strconv.ParseInt(offset, 10, 64)
	ns, timeErr := strconv.ParseInt(before, 10, 64)
	if !found || err != nil || timeErr != nil || n < newestCommand || ns < 0 {
		return at, badParameter("after", clipText(text)+" is no place in the list of commands; begin at the first page")
	}
	if at.offset = n; ns > 0 {
		at.changes = ledger.PersonPlace{At: time.Unix(0, ns), Model: model}
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
		next.changes = ledger.PersonPlace{At: l.changes[j-1].At, Model: l.changes[j-1].Model}
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
	if thing == "rollout" {
		return rolloutWords(c, verb)
	}
	return thing + " " + c.Subject + " " + verb
}
