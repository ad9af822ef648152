//go:build linux

package box

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// Supervise starts each of the plan's components when its conditions are met, and ends all as soon
// as one has ended. A cluster without one of its parts would fail in confusing ways. It writes the
// reason into the sandbox's folder, for the process that keeps the sandbox.
func Supervise(planFile string) error {
	plan, err := readPlan(planFile)
	if err != nil {
		return err
	}
	err = plan.supervise(context.Background())
	if err := os.WriteFile(plan.Place.verdict(), []byte(err.Error()), 0o644); err != nil {
		return fmt.Errorf("leave the reason of the sandbox's end: %w", err)
	}
	return nil
}

func (p Plan) supervise(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, c := range p.Before {
		if err := c.toEnd(ctx); err != nil {
			return err
		}
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(p.CA)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}}}
	ends := make(chan error, len(p.Components))
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
	}()
	for _, c := range p.Components {
		running.Go(func() {
			err := c.wait(ctx, client)
			if err == nil {
				err = c.run(ctx, p.Place.Log(c.Name+".log"))
			}
			ends <- err
		})
	}
	return <-ends
}

// wait returns when the component's conditions are met. It has no time limit, because the caller
// of up has one. The awaited component still runs, or it has ended and that was reported.
func (c Component) wait(ctx context.Context, client *http.Client) error {
	for _, probe := range c.After {
		for !probe.there(ctx, client) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

func (p Probe) there(ctx context.Context, client *http.Client) bool {
	if p.File != "" {
		return exists(p.File) == nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
	if err != nil {
		return false
	}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// toEnd runs a component that runs once.
func (c Component) toEnd(ctx context.Context) error {
	if said, err := c.command(ctx).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", c.Name, err, bytes.TrimSpace(said))
	}
	return nil
}

func (c Component) command(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	return cmd
}

// run runs a component. Its end is always an error.
func (c Component) run(ctx context.Context, file string) error {
	log, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", c.Name, err)
	}
	defer log.Close()
	cmd := c.command(ctx)
	cmd.Stdout, cmd.Stderr = log, log
	err = cmd.Run()
	if err == nil {
		err = fmt.Errorf("it said that all went well")
	}
	return fmt.Errorf("%s ended: %w; the last lines of its log:\n%s", c.Name, err, lastLines(file, 15))
}

// lastLines returns the end of a file, for messages.
func lastLines(file string, count int) []byte {
	f, err := os.Open(file)
	if err != nil {
		return []byte(err.Error())
	}
	defer f.Close()
	const most = 16 << 10
	if end, err := f.Seek(0, io.SeekEnd); err == nil {
		f.Seek(max(0, end-most), io.SeekStart)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return []byte(err.Error())
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return bytes.Join(slices.Clip(lines[max(0, len(lines)-count):]), []byte("\n"))
}
