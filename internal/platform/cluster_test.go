package platform

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/telemetry"
)

const scorersAtZero = `version: 1
streams: {messages: {partitions: 2}, scored: {partitions: 2}}
scorers:
  first: {from: messages, to: scored, model: "intent/{key}", noModel: drop}
  last: {from: messages, to: scored, model: "intent/{key}", noModel: drop, start: latest}
`

// The lag of a scorer is known while no process runs it; otherwise it would never start.
func TestTheLagOfAScorerThatDoesNotRun(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	p := open(t, Options{Config: parse(t, scorersAtZero), Embedded: &embedded.Options{Dir: data}, OwnStreams: true, Runs: &RunsOptions{Data: data},
		Telemetry: &telemetry.Options{Name: "test", Getenv: func(string) string { return "" }}})
	l := lagReader{p: p, seen: map[string]streamGrowth{}}
	ask := func(name string) int64 {
		t.Helper()
		lag, err := l.scorerLag(t.Context(), scorerNamed(t, p.Config(), name))
		if err != nil {
			t.Fatal(err)
		}
		return lag.Behind
	}
	if got := ask("first"); got != 0 {
		t.Errorf("of an empty stream %d are left", got)
	}
	if got := ask("last"); got == 0 {
		t.Error("one that begins at the end is never started, so that it never begins")
	}
	producer, err := p.Producer(broker.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		v := broker.View{ID: fmt.Sprint(i), Source: "/x", Type: "message", Subject: fmt.Sprint(i)}
		if _, err := producer.Publish(t.Context(), "messages", &v); err != nil {
			t.Fatal(err)
		}
	}
	before := l.seen["first"].at
	if got := ask("first"); got != 5 {
		t.Errorf("of five events %d are left", got)
	}
	if !l.seen["first"].at.After(before) {
		t.Error("the stream was not seen to grow")
	}
	if err := p.Scorers(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	eventuallyTrue(t, func() bool { return ask("first") == 0 })
	grew := l.seen["first"].at
	if ask("first"); l.seen["first"].at != grew {
		t.Error("a stream that stands still was seen to grow")
	}
}

func scorerNamed(t *testing.T, c *config.Config, name string) config.Scorer {
	t.Helper()
	for _, s := range c.Scorers {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no scorer %s", name)
	return config.Scorer{}
}

// eventuallyTrue waits for a condition.
func eventuallyTrue(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatal("it was waited in vain")
		}
	}
}

// Kubernetes changes a mounted ConfigMap by swapping a symbolic link to the folder of its files.
func TestASwappedLinkIsAChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount := func(version, text string) {
		t.Helper()
		folder := filepath.Join(dir, version)
		if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, "tidemill.yaml"), []byte(text), 0o600),
			os.Symlink(version, filepath.Join(dir, "..new")), os.Rename(filepath.Join(dir, "..new"), filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	mount("..1", "version: 1\n")
	file := filepath.Join(dir, "tidemill.yaml")
	if err := os.Symlink(filepath.Join("..data", "tidemill.yaml"), file); err != nil {
		t.Fatal(err)
	}
	load := config.NewReader(file, config.Place{}).Load
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, Options{Config: c, Embedded: &embedded.Options{}, OwnStreams: true})
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { p.Watch(ctx, load, 5*time.Millisecond) })
	t.Cleanup(func() {
		stop()
		watching.Wait()
	})
	mount("..2", "version: 1\nstreams: {messages: {types: [message]}}\n")
	eventuallyTrue(t, func() bool {
		_, known := p.Config().Stream("messages")
		return known
	})
}
