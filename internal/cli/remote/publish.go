package remote

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

const jsonType = "application/json"

func publishCommand() command.Command {
	return command.Command{
		Name:    "streams publish",
		Daily:   true,
		Short:   "publish",
		Args:    "[TYPE]",
		Summary: "publish an event, or a file of events",
		About: `It ends when all in-sync replicas have acknowledged every event. An event goes to the
stream that claims its type in the config, else to "events".

A file has one structured CloudEvent (JSON) per line. A bad line is reported as
file:line, the others are published, and the exit status is 1. Publishing the file
again is safe: a second event with the same source and id is not stored.`,
		Examples: []command.Example{
			{`tidemill publish bot-created --subject bot-42 -d '{"name": "Ada"}'`, "one event"},
			{`tidemill publish new-data --subject bot-42 -d @change.json --ext branch=main`, "data from a file, and an attribute to filter on"},
			{`tidemill publish --file events.ndjson`, "a file of events"},
			{`tidemill tail events --from -1h --no-follow -o json | tidemill publish --file - --stream copies`, "copy an hour of one stream to another"},
		},
		Make: func() command.Program { return &publish{source: "/cli", contentType: jsonType} },
	}
}

type publish struct {
	connect.Reach
	subject, source, id, time string
	stream, data, contentType string
	file, output              string
	extensions                []broker.Attribute
	given                     bool // whether --data is given; it may be empty
}

func (p *publish) Flags(f *command.FlagSet) {
	f.Text(&p.subject, "subject", "s", "KEY", "key of the event: events of one key stay in order, and it selects the model")
	f.Each("d", "JSON", "the data: JSON, @FILE or @- for standard input", p.takeData)
	f.Text(&p.source, "source", "", "URI", "source of the event")
	f.Text(&p.id, "id", "", "ID", "id of the event, unique for its source (default: a random one)")
	f.Text(&p.time, "time", "", "TIME", "time of the event, RFC 3339 (default: now)")
	f.Each("ext", "NAME=VALUE", "an extension attribute; may be given several times", p.takeExtension)
	f.Text(&p.contentType, "content-type", "", "TYPE", "content type of the data")
	f.Text(&p.stream, "stream", "", "STREAM", "stream to publish to (default: the one that claims the type)")
	f.Text(&p.file, "file", "", "FILE", "publish the events of a file, one per line; - is standard input")
	f.Format(&p.output, "text, or json: a receipt per line")
	p.Reach.Flags(f)
}

func (p *publish) takeData(text string) error {
	p.data, p.given = text, true
	return nil
}

func (p *publish) takeExtension(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("write it as name=value")
	}
	p.extensions = append(p.extensions, broker.Attribute{Name: name, Value: value})
	return nil
}

func (p *publish) Accept(positional []string) error {
	if p.file == "" {
		if len(positional) == 0 {
			return command.Usagef("TYPE is missing: name the event's type, such as bot-created, or give --file")
		}
		return nil
	}
	if len(positional) > 0 || p.subject != "" || p.id != "" || p.time != "" || p.given || len(p.extensions) > 0 {
		return command.Usagef("with --file the events are complete: leave out TYPE and the flags that describe one event")
	}
	return nil
}

func (p *publish) Run(ctx context.Context, s *command.Session, positional []string) (err error) {
	if err := tidemill.ReservedStream(p.stream); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if p.file != "" {
		return p.publishFile(ctx, s)
	}
	v, err := p.event(ctx, s, positional[0])
	if err != nil {
		return err
	}
	to, err := p.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close(ctx)) }()
	r, err := to.Publish(ctx, p.stream, &v)
	if err != nil {
		return p.explain(err, v.ID)
	}
	return p.print(s.Stdout, &v, r)
}

// explain adds what to do about an event that was not acknowledged.
func (p *publish) explain(err error, id string) error {
	if errors.Is(err, broker.ErrInDoubt) {
		return fmt.Errorf("%w; publish it again with --id %s: it is stored at most once", err, id)
	}
	return err
}

// event makes an event from the flags.
func (p *publish) event(ctx context.Context, s *command.Session, typ string) (broker.View, error) {
	v := broker.View{Type: typ, ID: p.id, Source: p.source, Subject: p.subject, Time: p.time, Extensions: p.extensions}
	if v.ID == "" {
		v.ID = strings.ToLower(rand.Text())
	}
	if v.Time == "" {
		v.Time = time.Now().UTC().Format(time.RFC3339Nano)
	}
	if err := tidemill.Reserved(v.Type, v.Source); err != nil {
		return v, fmt.Errorf("publish: %w", err)
	}
	if p.given {
		data, err := p.readData(ctx, s.Stdin)
		if err != nil {
			return v, fmt.Errorf("publish: %w", err)
		}
		v.Data, v.DataContentType = data, p.contentType
	}
	if err := v.Validate(); err != nil {
		return v, fmt.Errorf("publish: %w", err)
	}
	return v, nil
}

func (p *publish) readData(ctx context.Context, stdin io.Reader) ([]byte, error) {
	data, from := []byte(p.data), "the data"
	if name, ok := strings.CutPrefix(p.data, "@"); ok {
		var err error
		if data, err = readFileOr(name, untilDone(ctx, stdin)); err != nil {
			return nil, fmt.Errorf("read the data: %w", err)
		}
		if name == "-" {
			name = "standard input"
		}
		from += " in " + name
	}
	if p.contentType != jsonType || json.Valid(data) {
		return data, nil
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, fmt.Errorf("%s is empty, which is not JSON; leave out -d for an event without data", from)
	}
	return nil, fmt.Errorf("%s is not JSON: %w; correct it, or give its --content-type", from, jsonFault(data))
}

func readFileOr(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

func jsonFault(data []byte) error {
	var any json.RawMessage
	err := json.Unmarshal(data, &any)
	if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
		return fmt.Errorf("%w (byte %d)", err, at.Offset)
	}
	return err
}

// receipt is the JSON of an acknowledged event. The place of a repeated event is not known.
type receipt struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Type   string `json:"type"`
	*position
	Repeated bool `json:"repeated,omitempty"`
}

type position struct {
	Stream    string `json:"stream"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // -1 if Kafka does not know it any more
}

func (p *publish) print(w io.Writer, v *broker.View, r client.Receipt) (err error) {
	switch {
	case p.output == "json":
		told := receipt{ID: v.ID, Source: v.Source, Type: v.Type, Repeated: r.Repeated}
		if !r.Repeated {
			told.position = &position{r.Stream, r.Partition, r.Offset}
		}
		err = json.NewEncoder(w).Encode(told)
	case r.Repeated:
		_, err = fmt.Fprintf(w, "%s %s exists already: nothing was stored\n", v.Type, v.ID)
	default:
		_, err = fmt.Fprintf(w, "published %s %s to %s\n", v.Type, v.ID, place(r.Stream, r.Partition, r.Offset))
	}
	return err
}

// place formats the place of an event.
func place(stream string, partition int32, offset int64) string {
	switch {
	case partition < 0:
		return stream + ", partition unknown"
	case offset < 0:
		return fmt.Sprintf("%s, partition %d", stream, partition)
	}
	return fmt.Sprintf("%s, partition %d, offset %d", stream, partition, offset)
}

var errInterrupted = errors.New("interrupted")

// untilDone returns a reader that ends with the context. A read from a silent terminal or pipe
// cannot be cancelled, so its goroutine stays blocked. This is harmless, because the process ends
// soon.
func untilDone(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(errInterrupted) })
	return r
}

const flushWithin = 20 * time.Second // limit for the last answers after a failure

// fileRun publishes the events of one file.
type fileRun struct {
	p        *publish
	to       connect.Target
	name     string
	progress *show.Progress
	stdout   io.Writer

	mu        sync.Mutex
	published int
	repeated  int                // number of published events that were stored before
	bad       int                // number of lines without an event, or with a refused one
	open      int                // number of events without an answer
	fatal     error              // error that all later events would get, too
	cancel    context.CancelFunc // ends the wait for a silent input, too
}

func (p *publish) publishFile(ctx context.Context, s *command.Session) (err error) {
	going, cancel := context.WithCancel(ctx)
	defer cancel()
	in, name, size, err := p.openFile(going, s.Stdin)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	defer in.Close()
	to, err := p.Open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close(ctx)) }()
	r := &fileRun{p: p, to: to, name: name, stdout: s.Stdout, progress: show.StartProgress(s.Stderr, to.Worry(), size), cancel: cancel}
	defer r.progress.Stop()
	read := r.readLines(ctx, in)
	return r.finish(going, read)
}

func (p *publish) openFile(ctx context.Context, stdin io.Reader) (in io.ReadCloser, name string, size int64, err error) {
	if p.file == "-" {
		return io.NopCloser(untilDone(ctx, stdin)), "standard input", 0, nil
	}
	f, err := os.Open(p.file)
	if err != nil {
		return nil, "", 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, "", 0, errors.Join(err, f.Close())
	}
	if info.IsDir() {
		return nil, "", 0, errors.Join(fmt.Errorf("%s is a folder; name a file that has one event a line", p.file), f.Close())
	}
	return f, p.file, info.Size(), nil
}

// readLines sends every line. It stops early when the context ends or after a fatal error.
func (r *fileRun) readLines(ctx context.Context, in io.Reader) error {
	lines := newLineReader(in)
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) || r.stopped() {
			return nil
		}
		if errors.Is(err, errLongLine) {
			r.badLine(lines.number, err)
			continue
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted before line %d of %s", lines.number, r.name)
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", r.name, err)
		}
		r.progress.Read(lines.bytes)
		if len(line) > 0 {
			r.sendLine(ctx, lines.number, line)
		}
	}
}

func (r *fileRun) sendLine(ctx context.Context, number int, line []byte) {
	var v broker.View
	err := broker.UnmarshalStructured(line, &v)
	if err == nil {
		err = tidemill.Reserved(v.Type, v.Source)
	}
	if err != nil {
		r.badLine(number, err)
		return
	}
	var told *broker.View
	if r.p.output == "json" {
		kept := v.Clone()
		told = &kept
	}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	r.progress.Sent()
	r.to.Send(ctx, r.p.stream, &v, func(receipt client.Receipt, err error) { r.answered(number, told, receipt, err) })
}

// answered counts an answer. A refusal concerns only its event or all later ones too; the latter
// ends the run, instead of an error for each line.
func (r *fileRun) answered(number int, told *broker.View, receipt client.Receipt, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.progress.Answered(err == nil)
	switch {
	case err == nil:
		r.published++
		if receipt.Repeated {
			r.repeated++
		}
		if told != nil {
			err = r.p.print(r.stdout, told, receipt)
		}
		if err != nil {
			r.fail(fmt.Errorf("print a receipt: %w", err))
		}
	case r.alone(err):
		r.bad++
		r.progress.Printf("%s:%d: %v\n", r.name, number, err)
	default:
		r.open++ // its result is unknown
		r.fail(fmt.Errorf("%s:%d: %w", r.name, number, err))
	}
}

// fail stops the run. The caller holds the lock.
func (r *fileRun) fail(err error) {
	if r.fatal == nil {
		r.fatal = err
		r.cancel()
	}
}

// alone reports whether a refusal concerns only one event, not all others too.
func (r *fileRun) alone(err error) bool {
	var p *api.Problem
	switch {
	case errors.Is(err, broker.ErrNoStream):
		return r.p.stream == "" // a stream of --stream is the stream of all events
	case errors.Is(err, broker.ErrTooLarge):
		return true
	case errors.As(err, &p):
		return p.Attribute != "" || p.Type == api.ProblemBase+api.InvalidEvent
	}
	return false
}

func (r *fileRun) badLine(number int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad++
	r.progress.Printf("%s:%d: %v\n", r.name, number, err)
}

func (r *fileRun) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fatal != nil
}

// Flush waits for the missing answers. Each event has its own time limit; after a failure the whole
// run gets a few seconds.
func (r *fileRun) Flush(ctx context.Context) error {
	late, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(flushWithin, giveUp) })()
	if r.to.Flush(late) == nil {
		return nil
	}
	if err := r.progress.Worry.Trouble(); err != nil {
		return err
	}
	return fmt.Errorf("no answer came within %s", flushWithin)
}

// finish waits for the missing answers, also after an interruption, and prints the summary.
func (r *fileRun) finish(ctx context.Context, read error) error {
	flushed := r.Flush(ctx)
	r.progress.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fatal != nil {
		flushed = nil // it would be the same error again
	}
	err := errors.Join(read, r.fatal, flushed)
	out := r.progress.Out
	if r.p.output != "json" {
		out = r.stdout
	}
	fmt.Fprintf(out, "published %s%s%s\n", show.Count(r.published, "event"), r.progress.Rate(), r.before())
	mend, lasting := r.mend(err)
	switch {
	case lasting:
		return fmt.Errorf("publish: %w; %s not published%s", err, show.Count(r.open, "event"), mend)
	case err != nil && r.open > 0:
		return fmt.Errorf("publish: %w; %s not acknowledged; publish the file again: no event is stored twice", err, show.Count(r.open, "event"))
	case err != nil:
		return fmt.Errorf("publish: %w; publish the file again: no event is stored twice", err)
	case r.bad > 0:
		forms := [2]string{"were", "them"}
		if r.bad == 1 {
			forms = [2]string{"was", "it"}
		}
		return fmt.Errorf("publish: %s of %s %s not published; correct %s and publish the file again: no event is stored twice",
			show.Count(r.bad, "line"), r.name, forms[0], forms[1])
	}
	return nil
}

// mend suggests what to do about an error that would come again for the same file.
func (r *fileRun) mend(err error) (how string, lasting bool) {
	switch client.Status(err) {
	case http.StatusUnauthorized:
		return "", true // report adds how to give a token
	case http.StatusForbidden:
		return "; give a token with this right by " + connect.EnvToken + " or --token-file, or change the roles of this one", true
	case http.StatusNotFound:
		if errors.Is(err, broker.ErrNoStream) {
			return "; give another --stream, or add it to the gateway's config", true
		}
		return "; give the gateway's own --url", true
	case http.StatusUnsupportedMediaType:
		return "; the address does not accept batches of CloudEvents: give the gateway's own --url", true
	}
	return "", false
}

// before reports how many events were stored before, as after a second call for the same file.
func (r *fileRun) before() string {
	switch {
	case r.repeated == 0:
		return ""
	case r.repeated == 1:
		return "; 1 of them existed already and is not stored again"
	}
	return fmt.Sprintf("; %s of them existed already and are not stored again", show.Thousands(int64(r.repeated)))
}

// maxLine is more than the longest event needs, as JSON with its data in base64 or with all letters
// escaped.
const maxLine = 8 << 20

var errLongLine = errors.New("the line is longer than 8 MiB; is it one event?")

// lineReader reads lines and counts them. A line that is too long needs as little memory as any
// other.
type lineReader struct {
	in     *bufio.Reader
	long   []byte
	number int   // number of the last returned line, from 1
	bytes  int64 // number of bytes read
}

func newLineReader(in io.Reader) *lineReader {
	return &lineReader{in: bufio.NewReaderSize(in, 256<<10)}
}

// next returns the next line without the space around it. It is valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	l.number++
	l.long = l.long[:0]
	tooLong := false
	for {
		part, err := l.in.ReadSlice('\n')
		l.bytes += int64(len(part))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if tooLong = tooLong || len(l.long)+len(part) > maxLine; !tooLong {
				l.long = append(l.long, part...)
			}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case err != nil && len(part) == 0 && len(l.long) == 0:
			return nil, io.EOF
		case tooLong || len(l.long)+len(part) > maxLine+len("\n"):
			return nil, errLongLine
		}
		if len(l.long) > 0 {
			l.long = append(l.long, part...)
			part = l.long
		}
		return bytes.TrimSpace(part), nil
	}
}
