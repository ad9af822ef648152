package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/triggers/deadletters"
)

func lettersCommand() command.Command {
	return command.Command{
		Name:    "dead-letters",
		Daily:   true,
		Lists:   true,
		Watched: true,
		Aliases: []string{"dl"},
		Summary: "list dead letters (dl for short)",
		About: `It lists open dead letters, newest first. A dead letter that was replayed or dropped
has a receipt and is not listed. --reason matches a part of the reason.`,
		Examples: []command.Example{
			{"tidemill dead-letters", "all open dead letters"},
			{"tidemill dl --trigger tell-crm --since -1h", "dead letters of one trigger in the last hour"},
			{"tidemill dl --reason timeout -o json", "for a script"},
		},
		Make: func() command.Program {
			l := &letterList{}
			return listing(l.ask, l.table).with(l.own, l.accept)
		},
	}
}

// letterFlags select dead letters.
type letterFlags struct{ api.LetterSelection }

func (l *letterFlags) flags(f *command.FlagSet, reason string) {
	f.Text(&l.Trigger, "trigger", "t", "NAME", "only dead letters of this trigger")
	f.Text(&l.Scorer, "scorer", "", "NAME", "only events that this scorer could not score")
	f.Text(&l.Reason, reason, "", "TEXT", "only those with this text in their reason")
	f.Text(&l.Type, "type", "", "TYPE", "only events of this type")
	f.Text(&l.Key, "key", "", "KEY", "only events of this key")
	f.Text(&l.Stream, "stream", "", "STREAM", "only events from this stream")
	f.Text(&l.Since, "since", "", "TIME", "only those written since then: -1h or a time")
	f.Text(&l.Until, "until", "", "TIME", "only those written before then")
}

func (l *letterFlags) check() error {
	for _, limit := range []struct{ flag, text string }{{"--since", l.Since}, {"--until", l.Until}} {
		if limit.text == "" {
			continue
		}
		if _, err := follow.ParseTime(limit.text, time.Now()); err != nil {
			return command.Usagef("%s %v", limit.flag, err)
		}
	}
	return nil
}

// says reports whether a flag limits the selection.
func (l *letterFlags) says() bool {
	return l.Trigger+l.Scorer+l.Reason+l.Type+l.Key+l.Stream+l.Since+l.Until != ""
}

type letterList struct {
	letterFlags
	pages
}

func (l *letterList) own(f *command.FlagSet) {
	l.letterFlags.flags(f, "reason")
	l.pages.add(f)
}

func (l *letterList) accept([]string) error { return cmp.Or(l.pages.check(), l.letterFlags.check()) }

func (l *letterList) ask(ctx context.Context, g *client.Gateway) (all api.DeadLetters, err error) {
	all.DeadLetters, all.Cursor, err = gather(l.limit, l.after, func(limit int, after string) ([]api.DeadLetter, string, error) {
		page, err := g.DeadLetters(ctx, l.LetterSelection, limit, after)
		if all.Total == 0 {
			all.Total = page.Total
		}
		return page.DeadLetters, page.Cursor, err
	})
	return all, err
}

func (l *letterList) table(page *api.DeadLetters) table {
	return table{none: nothing(l.says() || l.after != "", "open dead letter", "There are no open dead letters."), advice: func(w io.Writer) { l.advise(w, page) },
		rows: rowsOf(page.DeadLetters, letterRow, "ID", "WRITTEN", "TRIGGER", "TYPE", "KEY", "TRIED", "REASON")}
}

func letterRow(l *api.DeadLetter) []string {
	reason := show.Cut(show.Harmless(l.Reason), 80)
	if l.State == api.LetterReplaying {
		reason = "(being replayed) " + reason
	}
	return []string{show.ShortID(l.ID), clock(l.Written), orDash(show.Harmless(failedDelivery(l))), orDash(show.Harmless(l.Type)), orDash(show.Cut(show.Harmless(l.Key), 40)), strconv.Itoa(l.Tried), reason}
}

// failedDelivery returns the trigger or the scorer that failed.
func failedDelivery(l *api.DeadLetter) string {
	if l.Scorer != "" {
		return "scorer/" + l.Scorer
	}
	return l.Trigger
}

// advise says how many are not shown, and suggests the next command.
func (l *letterList) advise(w io.Writer, page *api.DeadLetters) {
	fmt.Fprintln(w)
	if page.Cursor != "" {
		fmt.Fprintf(w, "These are %s of %s; --limit %[3]d shows all, --after %[4]s the next ones.\n", show.Thousands(int64(len(page.DeadLetters))), show.Count(page.Total, "open dead letter"), page.Total, show.Harmless(page.Cursor))
	}
	first := page.DeadLetters[0]
	fmt.Fprintf(w, "Next: tidemill dl show %s shows one in detail.\n", show.ShortID(first.ID))
	switch {
	case first.Scorer != "":
		fmt.Fprintf(w, "      tidemill dl replay --scorer %s, after its key has a model, and each missing input a default\n", show.Harmless(first.Scorer))
	case first.Trigger != "":
		fmt.Fprintf(w, "      tidemill dl replay --trigger %s --dry-run, after its subscriber is fixed\n", show.Harmless(first.Trigger))
	default:
		fmt.Fprintf(w, "      tidemill dl drop %s --reason TEXT, after its publisher is fixed\n", show.ShortID(first.ID))
	}
}

func lettersShowCommand() command.Command {
	return command.Command{
		Name:    "dead-letters show",
		Args:    "ID",
		Summary: "show a dead letter: the event, and each attempt to deliver it",
		About: `For an open dead letter the beginning of the id is enough, if no other id begins with
it. One that was replayed or dropped needs the whole id, and is shown with its receipt.`,
		Examples: []command.Example{
			{"tidemill dl show 3k7mzq", "by the beginning of its id"},
			{"tidemill dl show 3k7mzq -o json", "for a script"},
		},
		Make: func() command.Program { return showing((*client.Gateway).DeadLetter, showLetter) },
	}
}

func showLetter(w io.Writer, whole *api.WholeLetter) error {
	l := &whole.Letter
	say, flush := labelledLines(w)
	say("dead letter", l.ID+", "+string(l.State))
	say("trigger", l.Trigger)
	if l.Trigger == "" {
		say("of", failedDelivery(l))
	}
	say("reason", l.Reason)
	say("written", clock(l.Written))
	if l.Type != "" {
		say("event", l.Type+" of "+orDash(l.Key))
	} else if l.Key != "" {
		say("key", l.Key)
	}
	say("read from", placeOf(l))
	say("read by", l.Group)
	if l.Replay != "" {
		say("replay", "requested by command "+l.Replay)
	}
	if r := whole.Receipt; r != nil {
		say("receipt", receiptText(r))
	}
	if err := flush(); err != nil {
		return err
	}
	showAttempts(w, whole)
	showEventOf(w, whole)
	_, err := fmt.Fprint(w, nextForLetter(l))
	return err
}

func placeOf(l *api.DeadLetter) string {
	if l.LastOffset > l.Source.Offset {
		return fmt.Sprintf("%s, partition %d, offsets %d to %d", l.Source.Stream, l.Source.Partition, l.Source.Offset, l.LastOffset)
	}
	return place(l.Source.Stream, l.Source.Partition, l.Source.Offset)
}

func receiptText(r *api.Receipt) string {
	text := fmt.Sprintf("%s %s by %s: %s", r.Action, clock(r.At), orSomebody(r.By), r.Outcome)
	if r.Reason != "" {
		text += ", " + r.Reason
	}
	if r.NewLetter != "" {
		text += ", as dead letter " + r.NewLetter
	}
	return text
}

func showAttempts(w io.Writer, whole *api.WholeLetter) {
	if len(whole.Attempts) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", show.Count(max(whole.Letter.Tried, len(whole.Attempts)), "attempt"))
	left := whole.Letter.Tried - len(whole.Attempts)
	for i, a := range whole.Attempts {
		if left > 0 && i == len(whole.Attempts)/2 {
			fmt.Fprintf(w, "  … %s more\n", show.Thousands(int64(left)))
		}
		status := "no answer"
		if a.Status != 0 {
			status = fmt.Sprint(a.Status)
		}
		fmt.Fprintf(w, "  %s  %-9s %s  %s\n", clock(a.At), status, time.Duration(a.TookSeconds*float64(time.Second)).Round(time.Millisecond), show.Harmless(a.Error))
	}
	if last := whole.Attempts[len(whole.Attempts)-1]; last.Answer != "" {
		fmt.Fprintf(w, "\nThe last answer began:\n%s", indented(last.Answer))
	}
}

// indented indents each line of a text and removes terminal control characters.
func indented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		fmt.Fprintf(&b, "  %s\n", strings.TrimRight(show.Harmless(line), " "))
	}
	return b.String()
}

func showEventOf(w io.Writer, whole *api.WholeLetter) {
	switch {
	case whole.Event != nil:
		var pretty bytes.Buffer
		if json.Indent(&pretty, show.HarmlessJSON(whole.Event), "  ", "  ") == nil {
			fmt.Fprintf(w, "\nThe event:\n  %s\n", &pretty)
		}
	case whole.Record != nil:
		fmt.Fprintf(w, "\nThe record, which is not an event:\n  key %q, %s: %s\n", show.Cut(string(whole.Record.Key), 40), show.Size(int64(len(whole.Record.Value))), oneLine(whole.Record.Value))
		for _, h := range whole.Record.Headers {
			fmt.Fprintf(w, "  %s: %s\n", show.Harmless(h.Key), oneLine(h.Value))
		}
	}
}

// nextForLetter suggests the next command for a dead letter.
func nextForLetter(l *api.DeadLetter) string {
	switch {
	case l.State == api.LetterResolved:
		return ""
	case l.State == api.LetterReplaying:
		return "\nIt is being replayed; tidemill triggers show " + show.Harmless(l.Trigger) + " shows its progress.\n"
	case l.Scorer != "":
		return "\nNext: tidemill dl replay " + show.ShortID(l.ID) + ", after its key has a model, and each missing input a default\n      tidemill dl drop " + show.ShortID(l.ID) + " --reason TEXT\n"
	case l.Trigger == "":
		return "\nNext: fix its publisher, publish it again, then tidemill dl drop " + show.ShortID(l.ID) + " --reason TEXT\n"
	}
	return "\nNext: tidemill dl replay " + show.ShortID(l.ID) + "\n      tidemill dl drop " + show.ShortID(l.ID) + " --reason TEXT\n"
}

// receipts waits for the receipts of replays.
type receipts struct {
	s      *command.Session
	tail   *client.Tail
	wanted map[string]bool // ids of the dead letters without a receipt
	asked  int

	delivered, again, other int
}

func followReceipts(ctx context.Context, g *client.Gateway, s *command.Session) (*receipts, error) {
	t, err := g.Tail(ctx, client.TailOptions{Stream: tidemill.StreamDeadLetters, From: "end"})
	if err != nil {
		return nil, fmt.Errorf("wait for receipts: %w; --no-wait asks without waiting", err)
	}
	return &receipts{s: s, tail: t, wanted: map[string]bool{}}, nil
}

func (r *receipts) close() { r.tail.Close() }

// expect adds dead letters to wait for.
func (r *receipts) expect(ids []string) {
	for _, id := range ids {
		r.wanted[id] = true
	}
	r.asked += len(ids)
}

// shownReceipts is the largest number of receipts that are shown one by one.
const shownReceipts = 25

// run prints the receipts until it has all. Ctrl-C ends only the waiting, not the replay.
func (r *receipts) run(ctx context.Context) error {
	for len(r.wanted) > 0 {
		batch, err := r.tail.Next(ctx)
		if ctx.Err() != nil {
			fmt.Fprintf(r.s.Stderr, "The replay continues without this command; without a receipt yet: %s. Next: tidemill dl shows the state of each.\n", show.Count(len(r.wanted), "dead letter"))
			return nil
		}
		if err != nil {
			return fmt.Errorf("wait for receipts: %w; the replay continues, and tidemill dl shows its state", err)
		}
		for i := range batch {
			r.take(&batch[i])
		}
		if len(batch) > 0 && r.asked > shownReceipts {
			fmt.Fprintf(r.s.Stderr, "%s of %s\n", show.Thousands(int64(r.asked-len(r.wanted))), show.Thousands(int64(r.asked)))
		}
	}
	return r.sum()
}

func (r *receipts) take(e *follow.Event) {
	if e.Err != nil || e.Type != tidemill.TypeEventResolved {
		return
	}
	receipt, err := deadletters.ReadReceipt(&e.View)
	if err != nil || !r.wanted[receipt.Letter] {
		return
	}
	delete(r.wanted, receipt.Letter)
	switch receipt.Outcome {
	case deadletters.Delivered:
		r.delivered++
	case deadletters.FailedAgain:
		r.again++
	default:
		r.other++
	}
	if r.asked > shownReceipts {
		return
	}
	line := fmt.Sprintf("%s  %s", show.ShortID(receipt.Letter), receipt.Outcome)
	if receipt.Reason != "" {
		line += ": " + receipt.Reason
	}
	if receipt.NewLetter != "" {
		line += " (dead letter " + receipt.NewLetter[:min(len(receipt.NewLetter), show.ShownID)] + ")"
	}
	fmt.Fprintln(r.s.Stdout, show.Harmless(line))
}

// sum prints the totals. It returns an error if a dead letter has failed again.
func (r *receipts) sum() error {
	fmt.Fprintf(r.s.Stdout, "Delivered %s", show.Count(r.delivered, "dead letter"))
	if r.other > 0 {
		fmt.Fprintf(r.s.Stdout, ", %s dropped meanwhile", show.Thousands(int64(r.other)))
	}
	if r.again == 0 {
		fmt.Fprintln(r.s.Stdout, ".")
		return nil
	}
	fmt.Fprintf(r.s.Stdout, ", %s failed again. Next: tidemill dl lists them, newest first.\n", show.Thousands(int64(r.again)))
	return command.ErrReported
}
