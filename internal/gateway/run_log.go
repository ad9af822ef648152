package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/gateway/access"
)

// runLog sends the log of a run's command. The store may still have the log of a run that the
// ledger has forgotten. The key of such a run is unknown, so only callers with the role for all
// keys may read its log.
func (g *Gateway) runLog(w http.ResponseWriter, r *request) *api.Problem {
	q, p := readLogQuery(r)
	if p != nil {
		return p
	}
	l := &logReader{g: g, q: q, viewer: g.viewer(r), text: logText{timestamps: q.timestamps, begin: beginOf(q.part)}, skip: q.skip}
	if p := l.findRun(r); p != nil {
		return p
	}
	if p := g.chargeMemory(r, api.MaxLogChunk+outpourPortion); p != nil {
		return p
	}
	if !q.follow {
		return l.sendLog(r.Context(), w)
	}
	if p := g.tails.enter(r.callerName()); p != nil {
		return p
	}
	reason := tailFailed
	defer func() { g.tails.leave(r.callerName(), reason) }()
	ctx, release := g.untilEnding(r.Context())
	defer release()
	p = l.sendLog(ctx, w)
	reason = l.whyEnded(ctx)
	return p
}

// logQuery says which part of a log to send.
type logQuery struct {
	attempt    int    // 0 means the newest attempt
	part       string // name of one worker or server; empty means the first worker, and then the others
	follow     bool
	timestamps bool
	skip       int64 // bytes that the reader already has
}

func readLogQuery(r *request) (q logQuery, p *api.Problem) {
	values, p := r.parseQuery([]string{"attempt", "part", "follow", "timestamps", "skip"})
	if p != nil {
		return q, p
	}
	for name, to := range map[string]*bool{"follow": &q.follow, "timestamps": &q.timestamps} {
		switch text := orElse(values.Get(name), "false"); text {
		case "true", "false":
			*to = text == "true"
		default:
			return q, badParameter(name, fmt.Sprintf("%q is neither true nor false", clipText(text)))
		}
	}
	var err error
	if text := values.Get("attempt"); text != "" {
		if q.attempt, err = strconv.Atoi(text); err != nil || q.attempt < 1 || q.attempt > mostAttempts {
			return q, badParameter("attempt", fmt.Sprintf("%q is not the number of an attempt; give 1 or more, or leave it out for the newest", clipText(text)))
		}
	}
	if q.part = values.Get("part"); q.part != "" && !isPart(q.part) {
		return q, badParameter("part", fmt.Sprintf("%q is not a worker of an attempt; give one such as w0, w1 or ps0", clipText(q.part)))
	}
	if text := values.Get("skip"); text != "" {
		if q.skip, err = strconv.ParseInt(text, 10, 64); err != nil || q.skip < 0 {
			return q, badParameter("skip", fmt.Sprintf("%q is not a number of bytes", clipText(text)))
		}
	}
	return q, nil
}

// mostAttempts is larger than the number of attempts of any run.
const mostAttempts = 1000

// logReader sends a log to one reader.
type logReader struct {
	g      *Gateway
	q      logQuery
	id     string
	key    string // empty if unknown
	viewer *tailReader
	out    *streamedAnswer
	text   logText
	skip   int64 // bytes that must still be left out
	err    error // error that ended the answer

	attempt int // attempt whose log is being sent
	next    int // number of the next chunk
}

// logLook is the interval between checks for new chunks while a reader follows a log. Chunks
// arrive about every second, through any gateway.
const logLook = 500 * time.Millisecond

// findRun finds the run and the first attempt to send.
func (l *logReader) findRun(r *request) *api.Problem {
	if p := l.g.runsThere(); p != nil {
		return p
	}
	if l.g.opt.Store == nil {
		return noRuns()
	}
	run, p := l.g.findRun(r.Context(), r, access.Read, r.value)
	switch {
	case p == nil:
		l.id, l.key = run.ID, ownerOf(run)
	case p.Type == api.ProblemBase+api.UnknownRun && l.mayRead(r.caller) && tidemill.CheckLabel(r.value) == nil:
		l.id = r.value
		return l.findForgotten(r.Context())
	default:
		return p
	}
	if l.attempt = l.q.attempt; l.attempt == 0 {
		l.attempt = max(1, len(run.Attempts))
	}
	if l.attempt > max(1, len(run.Attempts)) {
		return badParameter("attempt", fmt.Sprintf("the run has had %d attempts", len(run.Attempts)))
	}
	return nil
}

// findForgotten searches the store for a run that the ledger has forgotten. The newest attempt with
// a log is chosen.
func (l *logReader) findForgotten(ctx context.Context) *api.Problem {
	const silent = 20 // attempts in a row without a log; no run has more
	first, last := 1, mostAttempts
	if l.q.attempt > 0 {
		first, last = l.q.attempt, l.q.attempt
	}
	for n := first; n <= last && n <= max(l.attempt, first)+silent; n++ {
		has := errors.New("it has a log")
		err := l.g.opt.Store.ReadLog(ctx, l.id, n, 0, true, func(int, []byte) error { return has })
		if errors.Is(err, has) {
			l.attempt = n
		} else if err != nil {
			return l.g.storeFault("read the log of run "+l.id, err)
		}
	}
	if l.attempt == 0 {
		return unknownRun(l.id)
	}
	return nil
}

// sendLog sends the log so far. For a follower, it sends the log until its end.
func (l *logReader) sendLog(ctx context.Context, w http.ResponseWriter) *api.Problem {
	l.out = l.g.newOutpour(w, "text/plain; charset=utf-8")
	h := w.Header()
	h.Set(api.HeaderAttempt, strconv.Itoa(l.attempt))
	if l.q.follow {
		h.Set("X-Accel-Buffering", "no")
	}
	var p *api.Problem
	l.err = l.sendUntilEnd(ctx)
	if l.err != nil && !l.out.began {
		h.Del(api.HeaderAttempt)
		p = l.problem(ctx)
	}
	return l.out.finish(ctx, l.err, p)
}

func (l *logReader) problem(ctx context.Context) *api.Problem {
	if p, ok := errors.AsType[*api.Problem](l.err); ok {
		return p
	}
	if ctx.Err() != nil {
		return unavailable("the gateway is stopping; try again later")
	}
	return l.g.storeFault("read the log of run "+l.id, l.err)
}

// sendUntilEnd sends all chunks so far. For a follower, it sends all chunks until the run has
// ended. The state of the run is read before the log. An attempt writes its log before it ends, so
// a log that is read after the end is complete.
//
// Chunks after a missing one are looked for at the first look at an attempt and after its end. In between, a missing chunk is the
// one that the attempt has not written yet.
func (l *logReader) sendUntilEnd(ctx context.Context) error {
	looked := 0 // attempt of the last look
	for {
		run, p := l.g.runOf(ctx, l.id)
		if p != nil {
			return p
		}
		over, next := logStands(run, l.attempt)
		if err := l.sendChunks(ctx, looked != l.attempt || over); err != nil {
			return err
		}
		looked = l.attempt
		switch {
		case !l.q.follow || over && next == 0:
			return l.sendOtherWorkers(ctx)
		case over && next > 0:
			if err := l.sendOtherWorkers(ctx); err != nil {
				return err
			}
			l.beginAttempt(next)
			continue
		}
		if err := l.sendAndWait(ctx); err != nil {
			return err
		}
	}
}

// logStands reports whether an attempt's log is complete, and returns the number of the next
// attempt; 0 if there is no next attempt.
func logStands(run *tidemill.Run, attempt int) (over bool, next int) {
	if run == nil {
		return true, 0
	}
	if len(run.Attempts) > attempt {
		return true, attempt + 1
	}
	return run.State.Ended(), 0
}

// sendChunks sends the chunks that have not been sent.
func (l *logReader) sendChunks(ctx context.Context, gaps bool) error {
	take := l.take(ctx, &l.next, &l.text)
	if l.q.part != "" && l.q.part != firstWorker {
		return l.g.opt.Store.ReadPartLog(ctx, l.id, l.attempt, l.q.part, l.next, gaps, take)
	}
	return l.g.opt.Store.ReadLog(ctx, l.id, l.attempt, l.next, gaps, take)
}

// take returns a function that sends a chunk. A line says how many earlier chunks are missing.
func (l *logReader) take(ctx context.Context, next *int, text *logText) func(int, []byte) error {
	return func(seq int, chunk []byte) error {
		if missing := seq - *next; missing > 0 {
			l.addText(text.endText)
			l.addText(func(to []byte) []byte {
				return fmt.Appendf(to, "%s--- chunks missing in the store: %d ---\n", text.begin, missing)
			})
		}
		*next = seq + 1
		l.addText(func(to []byte) []byte { return text.addChunk(to, chunk) })
		return l.out.sendPortion(ctx)
	}
}

// sendOtherWorkers completes the first worker's log and then sends the logs of the other workers,
// each in one piece. So a reader that reconnects with skip gets the same order, and the lines of a
// worker stay together.
func (l *logReader) sendOtherWorkers(ctx context.Context) error {
	l.addText(l.text.endText)
	if l.q.part != "" {
		return nil
	}
	parts, err := l.g.opt.Store.LogParts(ctx, l.id, l.attempt)
	if err != nil {
		return err
	}
	for _, part := range parts {
		next, text := 0, logText{timestamps: l.q.timestamps, begin: beginOf(part)}
		if err := l.g.opt.Store.ReadPartLog(ctx, l.id, l.attempt, part, 0, true, l.take(ctx, &next, &text)); err != nil {
			return err
		}
		l.addText(text.endText)
	}
	return nil
}

// beginOf returns the prefix of a worker's lines. The first worker has no prefix.
func beginOf(part string) string {
	if part == "" || part == firstWorker {
		return ""
	}
	return "[" + part + "] "
}

// addText adds text, except the part that the reader already has.
func (l *logReader) addText(text func(to []byte) []byte) {
	at := len(l.out.text)
	l.out.text = text(l.out.text)
	left := min(l.skip, int64(len(l.out.text)-at))
	l.skip -= left
	l.out.text = append(l.out.text[:at], l.out.text[at+int(left):]...)
}

// beginAttempt begins the log of another attempt with a line that names the attempt.
func (l *logReader) beginAttempt(attempt int) {
	l.addText(l.text.endText)
	l.addText(func(to []byte) []byte { return fmt.Appendf(to, "--- attempt %d ---\n", attempt) })
	l.attempt, l.next = attempt, 0
}

// sendAndWait sends the collected text, waits a while, and checks that the reader may still read.
func (l *logReader) sendAndWait(ctx context.Context) error {
	if !l.out.began || len(l.out.text) > 0 {
		if err := l.out.flush(ctx); err != nil {
			return err
		}
	}
	if err := retry.Sleep(ctx, logLook); err != nil {
		return err
	}
	if err := l.viewer.recheck(ctx); err != nil {
		return err
	}
	if !l.mayRead(l.viewer.caller) {
		return fmt.Errorf("%w: the run's key is not theirs now", errRefused)
	}
	return nil
}

// mayRead reports whether a caller may see the run.
func (l *logReader) mayRead(c *access.Caller) bool {
	return c.AllKeys(access.Read) || l.key != "" && c.MayTouch(access.Read, l.key)
}

// whyEnded returns the reason why a followed log ended.
func (l *logReader) whyEnded(ctx context.Context) string {
	switch {
	case l.err == nil:
		return tailEnded
	case errors.Is(context.Cause(ctx), errClosing):
		return tailClosing
	case errors.Is(l.err, errRefused):
		l.g.log.Info("gateway: the reader of a log lost the right to read it; the answer ends", "run", l.id, "reason", l.err)
		return tailRefused
	case errors.Is(l.err, errSlow):
		l.g.log.Info("gateway: the reader of a log was too slow; the answer is cut off", "run", l.id)
		return tailSlow
	case ctx.Err() != nil || errors.Is(l.err, errUnsent):
		return tailGone
	}
	l.g.log.Warn("gateway: sending a log failed; the answer is cut off", "run", l.id, "reason", l.err)
	return tailFailed
}

// logText converts the lines of a stored log into text for people. A line has the form
//
//	<time> <stdout|stderr> <F|P> <text>
//
// of container runtimes. F marks the end of a line of the command's output, and P marks a part of a
// line. A line of another form is shown unchanged, because even a broken log should be readable.
type logText struct {
	timestamps bool
	begin      string // prefix of each line: the name of its worker
	left       []byte // beginning of a line that continues in the next chunk
	open       string // stream of the last shown part, if its line has not ended
}

// mostLeft bounds a line. A longer line is shown as several lines.
const mostLeft = 1 << 20

// addChunk appends the readable text of a chunk.
func (t *logText) addChunk(to, chunk []byte) []byte {
	for len(chunk) > 0 {
		end := bytes.IndexByte(chunk, '\n')
		if end < 0 {
			t.left = append(t.left, chunk...)
			if len(t.left) < mostLeft {
				return to
			}
			return t.endLine(to)
		}
		line := chunk[:end]
		if len(t.left) > 0 {
			t.left = append(t.left, line...)
			line = t.left
		}
		to = t.showLine(to, line)
		t.left, chunk = t.left[:0], chunk[end+1:]
	}
	return to
}

// endLine ends an open line that has no further part.
func (t *logText) endLine(to []byte) []byte {
	if len(t.left) > 0 {
		to = t.showLine(to, t.left)
		t.left = t.left[:0]
	}
	return to
}

// endText completes the last line of the text.
func (t *logText) endText(to []byte) []byte {
	return t.breakLine("", t.endLine(to))
}

// breakLine breaks an open line, unless the next part is of the same stream.
func (t *logText) breakLine(stream string, to []byte) []byte {
	if t.open == "" || t.open == stream {
		return to
	}
	t.open = ""
	return append(to, '\n')
}

// showLine shows one line. If text of the other stream is between the parts of a line, the line is
// broken, so that the two streams are not mixed.
func (t *logText) showLine(to, line []byte) []byte {
	at, stream, part, text, ok := cutLogLine(line)
	if !ok {
		return append(append(append(t.breakLine("", to), t.begin...), line...), '\n')
	}
	to = t.breakLine(stream, to)
	if t.open == "" {
		to = append(to, t.begin...)
	}
	if t.timestamps && t.open == "" {
		to = append(append(append(append(to, at...), ' '), stream...), ' ')
	}
	to = append(to, text...)
	if t.open = ""; part {
		t.open = stream
		return to
	}
	return append(to, '\n')
}

func cutLogLine(line []byte) (at []byte, stream string, part bool, text []byte, ok bool) {
	at, rest, ok1 := bytes.Cut(line, []byte(" "))
	name, rest, ok2 := bytes.Cut(rest, []byte(" "))
	tag, text, ok3 := bytes.Cut(rest, []byte(" "))
	stream = string(name)
	full, part := string(tag) == "F", string(tag) == "P"
	ok = ok1 && ok2 && ok3 && (stream == "stdout" || stream == "stderr") && (full || part)
	return at, stream, part, text, ok
}
