// Package demo shows Tidemill at work once: events, a trigger, a recipe with its gate, a scorer. It
// uses Tidemill as any program does, by the commands of the tidemill binary and by HTTP. It imports
// no package of Tidemill.
package demo

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Trainer is the argument that makes the tidemill binary the demo's trainer.
const Trainer = "demo-trainer"

//go:embed tidemill.yaml
var config string

// Options say how the demo runs.
type Options struct {
	Tidemill string        // path of the tidemill binary
	Out      io.Writer     // output of the demo
	Within   time.Duration // time after which the demo hangs
	Stay     bool          // whether tidemill up keeps running after the demo, until the context ends
}

// demo is one run of the demo.
type demo struct {
	Options
	dir        string // folder in which tidemill up runs
	url, kafka string // addresses of tidemill up
	shops      *invoiceFunction
}

// pollPause is the pause between two polls.
const pollPause = 50 * time.Millisecond

// Run runs the demo in a folder that it removes at its end. Each fault that it finds is an error.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := os.MkdirTemp("", "tidemill-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	d := &demo{Options: o, dir: dir, shops: &invoiceFunction{tax: map[string]float64{"shop-1": 7}}}
	function, stop, err := d.shops.serve()
	if err != nil {
		return err
	}
	defer stop()
	file := strings.NewReplacer("http://127.0.0.1:8099", function, "[tidemill,", "["+quoted(filepath.ToSlash(o.Tidemill))+",").Replace(config)
	if err := os.WriteFile(filepath.Join(dir, "tidemill.yaml"), []byte(file), 0o600); err != nil {
		return err
	}
	down, err := d.startUp(ctx)
	if err != nil {
		return err
	}
	if err := d.playAll(ctx); err != nil {
		return errors.Join(err, down(), d.log())
	}
	d.say("\nEvery event arrived once, and the record that is not an event is among the dead letters. Nothing was lost.")
	if o.Stay {
		d.say("\nLook around: the dashboard is at %s/\nCtrl-C stops Tidemill and removes the folder %s.", d.url, d.dir)
		<-ctx.Done()
	}
	return down()
}

// playAll plays all parts of the demo.
func (d *demo) playAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.Within)
	defer cancel()
	for _, part := range []func(context.Context) error{d.events, d.writePoison, d.triggers, d.models, d.scores, d.outcomes} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

func quoted(text string) string {
	q, _ := json.Marshal(text) // a string cannot fail
	return string(q)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Out, format+"\n", args...) }

// startUp starts tidemill up and waits until it is ready. down stops tidemill up.
func (d *demo) startUp(ctx context.Context) (down func() error, err error) {
	c := d.command(context.WithoutCancel(ctx), "up", "--kafka-port", "0", "--redis-port", "0", "--listen", "127.0.0.1:0")
	log, err := os.Create(filepath.Join(d.dir, "up.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child process has its own descriptor
	c.Stderr = log
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, err
	}
	down = func() error {
		_ = c.Process.Signal(os.Interrupt)
		return c.Wait()
	}
	lines := bufio.NewScanner(out)
	for d.kafka == "" {
		if !lines.Scan() {
			return nil, errors.Join(errors.New("tidemill up has ended"), down(), d.log())
		}
		switch name, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), " "); name {
		case "http":
			d.url = strings.TrimSpace(value)
		case "kafka":
			d.kafka = strings.TrimSpace(value)
		}
	}
	go io.Copy(io.Discard, out)
	d.say("Tidemill's demo: tidemill up runs on a folder that is removed at the end.\n  gateway  %s\n  Kafka    %s", d.url, d.kafka)
	return down, nil
}

// log returns the end of tidemill up's log, as an error to look at.
func (d *demo) log() error {
	text, _ := os.ReadFile(filepath.Join(d.dir, "up.log"))
	return fmt.Errorf("the log of tidemill up ends:\n%s", text[max(0, len(text)-2000):])
}

// command returns a call of the tidemill binary in the demo's folder, where it finds the addresses
// of tidemill up.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, d.Tidemill, args...)
	c.Dir = d.dir
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TIDEMILL_") { // these variables may name another Tidemill
			c.Env = append(c.Env, v)
		}
	}
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	return c
}

// call runs a command and returns its output.
func (d *demo) call(ctx context.Context, args ...string) (string, error) {
	c := d.command(ctx, args...)
	var problem bytes.Buffer
	c.Stderr = &problem
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("tidemill %s: %w: %s", strings.Join(args, " "), err, problem.Bytes())
	}
	return string(out), nil
}

// show runs a command and shows it with its output.
func (d *demo) show(ctx context.Context, args ...string) (string, error) {
	out, err := d.call(ctx, args...)
	if err != nil {
		return "", err
	}
	line := "$ tidemill"
	for _, arg := range args {
		if strings.ContainsAny(arg, " '{") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	d.say("  %s", line)
	for text := range strings.Lines(strings.TrimSpace(out)) {
		d.say("%s", strings.TrimRight("    "+text, " \n"))
	}
	return out, nil
}

// get reads JSON from the gateway.
func (d *demo) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		return nil // not found yet
	}
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("GET %s: %s: %s", path, res.Status, text)
	}
	return json.NewDecoder(res.Body).Decode(to)
}

// pollUntil polls until the function yes returns true.
func pollUntil(ctx context.Context, what string, yes func() (bool, error)) error {
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for {
		if done, err := yes(); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
	}
}
