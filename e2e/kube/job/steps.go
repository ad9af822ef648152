package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// folders are the folders of the contract of a run.
type folders struct{ out, checkpoint string }

func foldersOf(variable func(string) string) (folders, error) {
	f := folders{variable("TIDEMILL_OUT"), variable("TIDEMILL_CHECKPOINT")}
	if f.out == "" || f.checkpoint == "" {
		return f, errors.New("find TIDEMILL_OUT and TIDEMILL_CHECKPOINT: set them to folders, or let tidemill do it")
	}
	return f, nil
}

// training is the number of steps, the step at which it waits, and the interval between steps. A
// first attempt stops at the step at which it waits, so that the test has time to kill it.
type training struct {
	count, wait int
	every       time.Duration
}

// train resumes after the last saved step. Its metrics contain the number of that step.
func (f folders) train(ctx context.Context, t training, out io.Writer) error {
	first, err := f.saved()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "begin at step %d\n", first)
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for step := first + 1; step <= t.count; step++ {
		next := tick.C
		if first == 0 && step > t.wait {
			next = nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("asked to leave before step %d", step)
		case <-next:
		}
		if err := f.step(step, t.count); err != nil {
			return err
		}
		fmt.Fprintf(out, "step %d of %d\n", step, t.count)
	}
	return f.leave(map[string]float64{"accuracy": 0.9, "steps": float64(t.count), "resumed": float64(first), "ended": float64(time.Now().UnixMilli())})
}

func (f folders) saved() (int, error) {
	data, err := os.ReadFile(filepath.Join(f.checkpoint, "step"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	step, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("read the checkpoint: %w", err)
	}
	return step, nil
}

// step saves a step, and writes its number to the metrics.
func (f folders) step(step, count int) error {
	log, err := os.OpenFile(filepath.Join(f.out, "metrics.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, `{"step": %d, "total": %d, "loss": %g}`+"\n", step, count, 1/float64(step))
	next := filepath.Join(f.checkpoint, "next")
	return errors.Join(err, log.Close(), os.WriteFile(next, []byte(strconv.Itoa(step)), 0o644), os.Rename(next, filepath.Join(f.checkpoint, "step")))
}

// identity is the smallest model: it answers the number that it is asked.
const identity = "CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ=="

// leave writes the output of a run that makes a model.
func (f folders) leave(metrics map[string]float64) error {
	data, err := json.Marshal(metrics)
	model, err2 := base64.StdEncoding.DecodeString(identity)
	return errors.Join(err, err2,
		os.WriteFile(filepath.Join(f.out, "metrics.json"), data, 0o644),
		os.WriteFile(filepath.Join(f.out, "model.onnx"), model, 0o644))
}
