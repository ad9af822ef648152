package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/follow"
	"tidemill.dev/internal/gateway/client"
)

func runsStartCommand() command {
	return command{
		name:    "runs start",
		daily:   true,
		args:    "RECIPE",
		summary: "start runs of a recipe, for some keys or all",
		about: `If a run of a key waits already, the request is merged into it: at most one run of a
key is live, and at most one waits. With --rate the runs become due one after the
other; the command does not wait for them. --all selects every key that the recipe has
had a request for. --where selects some of them, in CloudEvents SQL over subject (the
key). A recipe without keys is started without --key.

` + atTheGate,
		examples: []example{
			{"tidemill runs start intent --key bot-42", "one"},
			{"tidemill runs start intent --key bot-1,bot-2 --dry-run", "two keys; only show what would be done"},
			{"tidemill runs start intent --all --where \"subject LIKE 'bot-%'\" --rate 50/s", "all keys that match, slowly"},
		},
		make: func() program { return &runStart{} },
	}
}

type runStart struct {
	gate
	keys        []string
	all, dryRun bool
	where, rate string
	priority    int
	ask         api.RunsAsked
}

func (p *runStart) flags(f *flagSet) {
	f.each("key", "KEY[,KEY…]", "for this key; may be given several times", p.takeKeys)
	f.yes(&p.all, "all", "for every key that the recipe has had a request for")
	f.text(&p.where, "where", "", "CONDITION", "with --all: only keys for which this is true")
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	f.number(&p.priority, "priority", "", "NUMBER", "a higher number starts first if slots are short")
	f.yes(&p.dryRun, "dry-run", "only show what would be done")
	p.gate.flags(f)
}

func (p *runStart) takeKeys(text string) error {
	for key := range strings.SplitSeq(text, ",") {
		if key == "" {
			return fmt.Errorf("a key is empty")
		}
		p.keys = append(p.keys, key)
	}
	return nil
}

func (p *runStart) accept(positional []string) (err error) {
	if err := wants(positional, "RECIPE"); err != nil {
		return err
	}
	switch {
	case p.all && len(p.keys) > 0:
		return usagef("--all selects all keys: leave out --key or --all")
	case p.where != "" && !p.all:
		return usagef("--where selects some of all keys: give --all too")
	}
	if _, err := parseFilter(p.where); err != nil {
		return err
	}
	p.ask = api.RunsAsked{Recipe: positional[0], Keys: p.keys, All: p.all, Where: p.where, Priority: p.priority, DryRun: p.dryRun}
	p.ask.Rate, err = parseRate(p.rate)
	return err
}

func (p *runStart) run(ctx context.Context, s *session, _ []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	sum := newRunSum(s.stdout)
	named := client.NewAsking()
	for {
		got, err := g.StartRuns(ctx, named, p.ask)
		if err != nil {
			return err
		}
		sum.add(got.Runs)
		if p.ask.After = got.Next; got.Next == "" {
			return p.tell(s, sum)
		}
		fmt.Fprintf(s.stderr, "%s so far.\n", count(sum.total, "key"))
	}
}

func (p *runStart) tell(s *session, sum *runSum) error {
	if sum.total == 0 {
		fmt.Fprintf(s.stderr, "No key matches: recipe %s has had no request yet, or --where selects none of its keys. Give --key.\n", harmless(p.ask.Recipe))
		return nil
	}
	sum.end(s.stdout, p.dryRun)
	if id := sum.last; !p.dryRun && id != "" {
		fmt.Fprintf(s.stderr, "Next: tidemill runs show %s, tidemill runs --recipe %s --watch\n", shortID(id), harmless(p.ask.Recipe))
	}
	return sum.failure()
}

const listedRuns = 20 // number of results that are printed one by one

// runSum prints the first results, and counts all.
type runSum struct {
	out            io.Writer
	total, refused int
	counts         map[string]int
	order          []string
	last           string
}

func newRunSum(out io.Writer) *runSum { return &runSum{out: out, counts: map[string]int{}} }

func (m *runSum) add(all []api.RunDone) {
	for i := range all {
		m.addOne(&all[i])
	}
}

func (m *runSum) addOne(d *api.RunDone) {
	if m.total++; m.total <= listedRuns {
		fmt.Fprintf(m.out, "%-*s  %s  %s  %s\n", shownID, orDash(shortID(d.Run)), orDash(harmless(d.Recipe)), orDash(harmless(d.Key)), harmless(d.Done))
	}
	what := harmless(d.Done)
	if d.Refused {
		m.refused++
		what = "skipped"
	} else if d.Run != "" {
		m.last = d.Run
	}
	if m.counts[what] == 0 {
		m.order = append(m.order, what)
	}
	m.counts[what]++
}

// end prints the totals, if there is more than one result.
func (m *runSum) end(out io.Writer, dryRun bool) {
	if m.total > listedRuns {
		fmt.Fprintf(out, "… and %s more\n", thousands(int64(m.total-listedRuns)))
	}
	if m.total > 1 {
		var parts []string
		for _, what := range m.order {
			parts = append(parts, thousands(int64(m.counts[what]))+" "+what)
		}
		fmt.Fprintf(out, "%s: %s.\n", count(m.total, "run"), strings.Join(parts, ", "))
	}
	if dryRun && m.refused < m.total {
		fmt.Fprintln(out, "Next: the same without --dry-run.")
	}
}

// failure returns an error if all were refused.
func (m *runSum) failure() error {
	if m.total > 0 && m.refused == m.total {
		return errReported
	}
	return nil
}

// runAsk has the flags of the commands that change runs.
type runAsk struct {
	gate
	runFlags
	where       string
	all, dryRun bool
}

func (a *runAsk) flags(f *flagSet, what string) {
	a.runFlags.flags(f)
	f.text(&a.where, "where", "", "CONDITION", "only runs for which this is true, in CloudEvents SQL over subject (the key), recipe, run, state, reason")
	f.yes(&a.all, "all", "all runs that "+what)
	f.yes(&a.dryRun, "dry-run", "only show what would be done")
	a.gate.flags(f)
}

func (a *runAsk) says() bool { return a.runFlags.says() || a.where != "" }

func (a *runAsk) accept(positional []string) error {
	switch {
	case a.all && (a.says() || len(positional) > 0):
		return usagef("--all selects all: leave out the other flags and ids, or --all")
	case a.says() && len(positional) > 0:
		return usagef("give either runs by their ids, or flags that select them")
	case !a.all && !a.says() && len(positional) == 0:
		return usagef("say which runs: a RUN, a flag such as --recipe NAME, or --all")
	}
	if _, err := parseFilter(a.where); err != nil {
		return err
	}
	return a.check()
}

// selection returns the selected runs.
func (a *runAsk) selection() (ask api.RunsSelected, err error) {
	ask = api.RunsSelected{Recipe: a.recipe, Key: a.key, States: a.states, Where: a.where, All: a.all, DryRun: a.dryRun}
	if a.since != "" {
		at, err := follow.ParseTime(a.since, time.Now())
		if err != nil {
			return ask, usagef("--since %v", err)
		}
		ask.Since = &at
	}
	return ask, nil
}

const namedAtOnce = 1000

// do sends requests until all selected runs are done.
func (a *runAsk) do(ctx context.Context, s *session, ids []string, one func(context.Context, api.RunsSelected) (api.RunsDone, error)) error {
	ask, err := a.selection()
	if err != nil {
		return err
	}
	sum := newRunSum(s.stdout)
	part := func() error {
		got, err := one(ctx, ask)
		sum.add(got.Runs)
		ask.After, ask.First = got.Next, ask.First+len(got.Runs)
		return err
	}
	for chunk := range slices.Chunk(ids, namedAtOnce) {
		ask.Runs = chunk
		if err := part(); err != nil {
			return err
		}
	}
	for again := len(ids) == 0; again; again = ask.After != "" {
		if err := part(); err != nil {
			return err
		}
	}
	if sum.total == 0 {
		fmt.Fprintln(s.stderr, "No run matches; tidemill runs lists them.")
		return nil
	}
	sum.end(s.stdout, a.dryRun)
	return sum.failure()
}

func runsCancelCommand() command {
	return command{
		name:    "runs cancel",
		args:    "[RUN…]",
		summary: "cancel runs",
		about: `A waiting run ends at once. The command of a running one gets SIGTERM, so that it can
save its state, and is killed if it does not exit. Without --state all runs that have
not ended are selected.

` + atTheGate,
		examples: []example{
			{"tidemill runs cancel 3k7mzq --reason 'wrong data'", "one, by the beginning of its id"},
			{"tidemill runs cancel --recipe intent --state waiting --dry-run", "only count the waiting runs"},
			{"tidemill runs cancel --where \"subject LIKE 'test-%'\"", "by a condition"},
		},
		make: func() program { return &runCancel{} },
	}
}

type runCancel struct {
	runAsk
	reason string
}

func (p *runCancel) flags(f *flagSet) {
	f.text(&p.reason, "reason", "", "TEXT", "reason, shown later with the change")
	p.runAsk.flags(f, "have not ended")
}

func (p *runCancel) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	return p.do(ctx, s, positional, func(ctx context.Context, ask api.RunsSelected) (api.RunsDone, error) {
		ask.Reason = p.reason
		return g.CancelRuns(ctx, ask)
	})
}

func runsRetryCommand() command {
	return command{
		name:    "runs retry",
		args:    "[RUN…]",
		summary: "retry runs that have ended, for the events of the old runs",
		about: `It requests a new run, which gets the newest data when it starts. Without --state it
selects runs that failed or were cancelled. It skips a run that is selected by flags if
its key has a newer one.

` + atTheGate,
		examples: []example{
			{"tidemill runs retry 3k7mzq", "one, by the beginning of its id"},
			{"tidemill runs retry --recipe intent --since -1d --dry-run", "runs that failed within a day"},
			{"tidemill runs retry --where \"reason LIKE '%out of memory%'\" --rate 1/s", "by a condition, slowly"},
		},
		make: func() program { return &runRetry{} },
	}
}

type runRetry struct {
	runAsk
	rate string

	perSecond float64
}

func (p *runRetry) flags(f *flagSet) {
	f.text(&p.rate, "rate", "", "RATE", "no faster than this, such as 50/s")
	p.runAsk.flags(f, "failed or were cancelled")
}

func (p *runRetry) accept(positional []string) (err error) {
	if p.perSecond, err = parseRate(p.rate); err != nil {
		return err
	}
	return p.runAsk.accept(positional)
}

func (p *runRetry) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	named := client.NewAsking()
	return p.do(ctx, s, positional, func(ctx context.Context, ask api.RunsSelected) (api.RunsDone, error) {
		ask.Rate = p.perSecond
		return g.RetryRuns(ctx, named, ask)
	})
}

const (
	watchEvery  = time.Second
	usualHeight = 24
	usualWidth  = 100
)

// runWatch polls runs. On a terminal it redraws a table; elsewhere it prints a line for each
// change.
type runWatch struct {
	list *runList
	g    *client.Gateway
	out  io.Writer

	screen *os.File          // nil if the output is not a terminal
	drawn  int               // number of lines of the drawn table
	told   map[string]string // last printed line of each run
}

func newRunWatch(l *runList, g *client.Gateway, s *session) *runWatch {
	w := &runWatch{list: l, g: g, out: s.stdout, told: map[string]string{}}
	if f, ok := s.stdout.(*os.File); ok && isTerminal(f) {
		w.screen = f
	}
	return w
}

// run polls until it is interrupted, which is not an error.
func (w *runWatch) run(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		all, err := w.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.show(all, time.Now()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look returns all live runs, however old, and the newest ones.
func (w *runWatch) look(ctx context.Context) ([]api.RunShown, error) {
	newest, err := gatherRuns(ctx, w.g, w.list.query(w.list.limit))
	if err != nil || len(w.list.states) > 0 {
		return byLiveliness(newest.Runs, nil), err
	}
	q := w.list.query(w.list.limit)
	q.States = []tidemill.RunState{tidemill.RunRunning, tidemill.RunResting, tidemill.RunSettling}
	live, err := gatherRuns(ctx, w.g, q)
	return byLiveliness(newest.Runs, live.Runs), err
}

// byLiveliness sorts runs: live, waiting, ended; the ended ones newest first.
func byLiveliness(newest, live []api.RunShown) []api.RunShown {
	all := slices.Clone(live)
	known := map[string]bool{}
	for i := range live {
		known[live[i].ID] = true
	}
	for i := range newest {
		if !known[newest[i].ID] {
			all = append(all, newest[i])
		}
	}
	slices.SortStableFunc(all, func(a, b api.RunShown) int {
		return cmp.Or(cmp.Compare(liveliness(&a), liveliness(&b)), b.End.Compare(a.End))
	})
	return all
}

func liveliness(r *api.RunShown) int {
	switch {
	case r.State.Ended():
		return 2
	case r.State == tidemill.RunWaiting:
		return 1
	}
	return 0
}

func (w *runWatch) show(all []api.RunShown, now time.Time) error {
	if w.screen == nil {
		return w.tell(all, now)
	}
	width, height, err := term.GetSize(int(w.screen.Fd()))
	if err != nil {
		width, height = usualWidth, usualHeight
	}
	frame := runFrame(all, now, width, height)
	_, err = fmt.Fprint(w.out, w.over()+frame)
	w.drawn = strings.Count(frame, "\n")
	return err
}

// over returns the control codes that clear the drawn table.
func (w *runWatch) over() string {
	if w.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", w.drawn)
}

// runFrame formats as much of the table as the screen has room for.
func runFrame(all []api.RunShown, now time.Time, width, height int) string {
	counts := map[int]int{}
	for i := range all {
		counts[liveliness(&all[i])]++
	}
	head := fmt.Sprintf("%s live, %d waiting, %d ended   %s   Ctrl-C ends this\n", count(counts[0], "run"), counts[1], counts[2], now.Format(time.TimeOnly))
	rows := max(height-4, 1)
	left := len(all) - rows
	var table strings.Builder
	_ = tabulateRuns(&table, all[:min(len(all), rows)], now) // a builder returns no error
	var frame strings.Builder
	for line := range strings.Lines(head + table.String()) {
		frame.WriteString(cut(strings.TrimRight(line, " \n"), max(width-1, 20)) + "\n")
	}
	if left > 0 {
		fmt.Fprintf(&frame, "… and %d more\n", left)
	}
	return frame.String()
}

// tell prints a line for each run that has changed.
func (w *runWatch) tell(all []api.RunShown, now time.Time) error {
	for i := range slices.Backward(all) {
		r := &all[i]
		text := strings.TrimRight(fmt.Sprintf("%s  %s  %s  %s  %s", shortID(r.ID), harmless(r.Recipe), orDash(harmless(r.Key)), stateOfRun(r), harmless(noteOf(r))), " ")
		if w.told[r.ID] == text {
			continue
		}
		w.told[r.ID] = text
		if _, err := fmt.Fprintf(w.out, "%s  %s\n", now.Format(time.TimeOnly), text); err != nil {
			return err
		}
	}
	return nil
}

func logsCommand() command {
	return command{
		name:    "runs logs",
		daily:   true,
		short:   "logs",
		args:    "RUN",
		summary: "show the log of a run's command",
		about: `The first six letters of the run's id are enough, if no other id begins with them. It
shows the newest attempt, or that of --attempt. With -f it continues, also through later
attempts, until the run has ended or until Ctrl-C.

For a run with several workers it prints the log of the first one, and after its end
the logs of the others, with a name on each line: [w1] is the second worker, [ps0] the
first parameter server. --part prints only one of them, and with -f it follows it.

The log is stored with the output of the run.

` + atTheGate,
		examples: []example{
			{"tidemill logs 3k7mzq", "the log until now"},
			{"tidemill logs 3k7mzq -f", "until the run has ended"},
			{"tidemill logs 3k7mzq --part w1 -f", "the log of the second worker"},
			{"tidemill logs 3k7mzq --attempt 1 --timestamps", "the log of the first attempt, with the time of each line"},
		},
		make: func() program { return &logShow{} },
	}
}

type logShow struct {
	gate
	want client.LogOptions
}

func (p *logShow) flags(f *flagSet) {
	f.yesOr(&p.want.Follow, "follow", "f", "continue until the run has ended")
	f.number(&p.want.Attempt, "attempt", "", "NUMBER", "number of the attempt; 0 is the newest")
	f.text(&p.want.Part, "part", "", "NAME", "only the log of this worker, such as w0, w1 or ps0")
	f.yes(&p.want.Timestamps, "timestamps", "begin each line with its time, and stdout or stderr")
	p.gate.flags(f)
}

func (p *logShow) accept(positional []string) error {
	if p.want.Attempt < 0 {
		return usagef("--attempt %d: give 1 or more", p.want.Attempt)
	}
	return wants(positional, "RUN")
}

func (p *logShow) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	out := &logOutput{to: s.stdout, seen: onScreen(s.stdout)}
	err = g.RunLog(ctx, positional[0], p.want, out)
	switch {
	case err != nil && p.want.Follow && ctx.Err() != nil:
		return out.flush() // Ctrl-C is the normal end of following
	case err != nil:
		return err
	case out.written == 0:
		fmt.Fprintln(s.stderr, "The log is empty.")
	}
	return out.flush()
}

func onScreen(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// logOutput writes a log. Files and programs get it unchanged. A terminal gets it without control
// characters, because the command may repeat any data. The carriage return stays, because progress
// bars use it.
type logOutput struct {
	to      io.Writer
	seen    bool // whether the output is a terminal
	written int64
	left    []byte // beginning of an incomplete character
}

// Write writes all complete characters.
func (o *logOutput) Write(b []byte) (int, error) {
	o.written += int64(len(b))
	if !o.seen {
		return o.to.Write(b)
	}
	text := append(o.left, b...)
	whole := len(text) - cutLetter(text)
	_, err := o.to.Write(harmlessLog(text[:whole]))
	o.left = append([]byte(nil), text[whole:]...)
	return len(b), err
}

func (o *logOutput) flush() error {
	if len(o.left) == 0 {
		return nil
	}
	_, err := o.to.Write(harmlessLog(o.left))
	return err
}

// cutLetter returns how many bytes at the end belong to an incomplete character.
func cutLetter(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if rest := text[len(text)-n:]; utf8.RuneStart(rest[0]) {
			if utf8.FullRune(rest) {
				return 0
			}
			return n
		}
	}
	return 0
}

func harmlessLog(text []byte) []byte {
	safe := make([]byte, 0, len(text))
	for _, r := range string(text) {
		switch {
		case r == '\n', r == '\r', r == '\t', unicode.IsPrint(r):
			safe = utf8.AppendRune(safe, r)
		case unicode.IsSpace(r):
			safe = append(safe, ' ')
		default:
			safe = append(safe, "·"...)
		}
	}
	return safe
}
