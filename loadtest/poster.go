package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"tidemill.dev/loadtest/internal/task"
)

// poster is a bare net/http client. It posts the same events as a dispatcher over keep-alive
// connections and does nothing else, so no dispatcher written with net/http can be faster.
type poster struct {
	url     string
	client  *http.Client
	events  []task.Event
	numbers chan int
	failed  chan error // first error
	workers int
	begin   sync.Once
}

func newPoster(addr string, workers int) *poster {
	return &poster{url: "http://" + addr + pathEvents, workers: workers, events: task.Events(), numbers: make(chan int), failed: make(chan error, 1),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers, DisableCompression: true}}}
}

func (p *poster) post(ctx context.Context, number int) error {
	e := &p.events[number%len(p.events)]
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(e.Data))
	if err != nil {
		return err
	}
	req.Header = http.Header{"User-Agent": {"tidemill-loadtest"}, "Prefer": {"reply"}, "Content-Type": {e.ContentType},
		"Ce-Specversion": {"1.0"}, "Ce-Id": {strconv.Itoa(number)}, "Ce-Source": {e.Source}, "Ce-Type": {e.Type}, "Ce-Subject": {e.Subject},
		"Ce-Time": {e.Time}, "Ce-Dataset": {e.Dataset}, "Ce-Branch": {e.Branch}}
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err = errors.Join(err, res.Body.Close()); err == nil && res.StatusCode != http.StatusAccepted {
		err = fmt.Errorf("the subscriber answers %s", res.Status)
	}
	return err
}

// assign gives a number to a free worker.
func (p *poster) assign(ctx context.Context, number int) error {
	p.begin.Do(func() {
		for range p.workers {
			go func() {
				for n := range p.numbers {
					p.fail(p.post(ctx, n))
				}
			}()
		}
	})
	select {
	case p.numbers <- number:
		return nil
	case err := <-p.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *poster) fail(err error) {
	if err == nil {
		return
	}
	select {
	case p.failed <- err:
	default:
	}
}

// runPoster runs a bare client's process, which posts without a pause.
func runPoster(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 2 {
		return errors.New("poster: give an address and how many requests at once")
	}
	workers, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p := newPoster(args[0], workers)
	fmt.Fprintln(stdout, "posting")
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			for n := i; ctx.Err() == nil; n += workers {
				if err := p.post(ctx, n); ctx.Err() == nil {
					p.fail(err)
				}
			}
		})
	}
	err = serveCommands(stdin, stdout, task.Task{})
	stop()
	all.Wait()
	select {
	case failed := <-p.failed:
		return errors.Join(err, failed)
	default:
		return err
	}
}
