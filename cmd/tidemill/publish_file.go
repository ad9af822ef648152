package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/internal/platform"
)

const (
	lingerFile  = 2 * time.Millisecond // a file's events have company
	flushWithin = 20 * time.Second     // for the last answers, an interrupted run's too
)

// fileRun is the publishing of one file.
type fileRun struct {
	p        *publish
	pf       *platform.Platform
	producer *broker.Producer
	name     string
	progress *progress
	stdout   io.Writer

	mu        sync.Mutex
	published int
	bad       int   // lines that are no event, or whose event was refused
	open      int   // sent and not answered
	fatal     error // not about one event: the rest would fail too
}

func (p *publish) publishFile(ctx context.Context, s *session) (err error) {
	in, name, size, err := p.openFile(ctx, s.stdin)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	defer in.Close()
	pf, err := p.open(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closePlatform(ctx, pf)) }()
	producer, err := pf.Producer(broker.ProducerOptions{Linger: lingerFile, Compression: broker.LZ4})
	if err != nil {
		return err
	}
	r := &fileRun{p: p, pf: pf, producer: producer, name: name, stdout: s.stdout, progress: startProgress(s.stderr, size)}
	defer r.progress.stop()
	read := r.readLines(ctx, in)
	return r.finish(ctx, read)
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

// readLines sends every line. It stops early when the context ends or when
// going on is in vain.
func (r *fileRun) readLines(ctx context.Context, in io.Reader) error {
	lines := newLineReader(in)
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
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
		if r.stopped() {
			return nil
		}
		r.progress.read(lines.bytes)
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
	stream := r.p.stream
	if stream == "" {
		stream = r.pf.Config().StreamFor(v.Type)
	}
	var told *broker.View
	if r.p.output == "json" {
		kept := v.Clone()
		told = &kept
	}
	r.mu.Lock()
	r.open++
	r.mu.Unlock()
	r.progress.sent()
	r.producer.Send(ctx, stream, &v, func(receipt broker.Receipt, err error) { r.answered(number, told, receipt, err) })
}

// answered counts an answer. A refusal is about its event alone or about all
// that follow; the latter ends the run instead of being said for each line.
func (r *fileRun) answered(number int, told *broker.View, receipt broker.Receipt, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open--
	r.progress.answered(err == nil)
	switch {
	case err == nil:
		r.published++
		if told != nil {
			err = r.p.print(r.stdout, told, receipt)
		}
		if err != nil && r.fatal == nil {
			r.fatal = fmt.Errorf("print a receipt: %w", err)
		}
	case errors.Is(err, broker.ErrTooLarge), errors.Is(err, broker.ErrNoStream):
		r.bad++
		r.progress.printf("%s:%d: %v\n", r.name, number, err)
	default:
		r.open++ // it has no answer that says where it is
		if r.fatal == nil {
			r.fatal = fmt.Errorf("%s:%d: %w", r.name, number, err)
		}
	}
}

func (r *fileRun) badLine(number int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad++
	r.progress.printf("%s:%d: %v\n", r.name, number, err)
}

func (r *fileRun) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fatal != nil
}

// finish waits for the answers that are still on their way, an interrupted
// run's too, and sums up.
func (r *fileRun) finish(ctx context.Context, read error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
	defer cancel()
	flushed := r.producer.Flush(ctx)
	r.progress.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	err := errors.Join(read, r.fatal, flushed)
	out := r.progress.out
	if r.p.output != "json" {
		out = r.stdout
	}
	fmt.Fprintf(out, "published %s%s\n", count(r.published, "event"), r.progress.rate())
	switch {
	case err != nil && r.open > 0:
		return fmt.Errorf("publish: %w; %s not acknowledged, so publish the file again: of events with the same source and id the first counts", err, count(r.open, "event"))
	case err != nil:
		return fmt.Errorf("publish: %w; publish the file again: of events with the same source and id the first counts", err)
	case r.bad > 0:
		forms := [2]string{"were", "them"}
		if r.bad == 1 {
			forms = [2]string{"was", "it"}
		}
		return fmt.Errorf("publish: %s of %s %s not published; mend %s and publish the file again: of events with the same source and id the first counts",
			count(r.bad, "line"), r.name, forms[0], forms[1])
	}
	return nil
}
