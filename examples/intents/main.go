// Command intents is a trainer: it learns which intent a message to a chat bot has, by the contract
// of a run, with Go's standard library alone.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	err := doRun(ctx, os.Getenv, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// epochs is the number of epochs after which the loss hardly changes for some hundreds of messages.
const epochs = 300

// doRun does a run. The input is in folders that environment variables name, and the output is in
// TIDEMILL_OUT.
func doRun(ctx context.Context, variable func(string) string, log io.Writer) error {
	out := variable("TIDEMILL_OUT")
	if out == "" || variable("TIDEMILL_IN") == "" {
		return errors.New("find TIDEMILL_IN and TIDEMILL_OUT: set them to folders, or let tidemill do it")
	}
	total, err := strconv.Atoi(variable("EPOCHS"))
	if err != nil {
		total = epochs
	}
	d, err := readData(variable("TIDEMILL_IN"))
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "%d messages to learn from, %d to be measured by\n", len(d.learn), len(d.held))
	m, err := trainModel(ctx, d, total, variable("TIDEMILL_CHECKPOINT"), out, log)
	if err != nil {
		return err
	}
	champion, err := readChampion(variable("TIDEMILL_CHAMPION"))
	if err != nil { // not an error of this run; a gate that needs the champion refuses the version
		fmt.Fprintf(log, "the champion is not measured: %v\n", err)
	}
	return errors.Join(
		write(filepath.Join(out, "model.onnx"), m.onnx()),
		write(filepath.Join(out, "model.yaml"), m.card()),
		measure(out, d, m, champion, log),
	)
}

// readChampion reads the promoted model. Before the first promotion there is no model.
func readChampion(folder string) (*model, error) {
	if folder == "" {
		return nil, nil
	}
	data, err := os.ReadFile(filepath.Join(folder, "model.onnx"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return readModel(data)
}

// card returns the description of the model's input and output for a server. A JSON list is valid
// YAML, too.
func (m *model) card() []byte {
	labels, _ := json.Marshal(m.labels) // a list of texts cannot fail
	return fmt.Appendf(nil, "input: %s\noutput: %s\nlabels: %s\n", inputName, outputName, labels)
}

// write writes a file completely or not at all, even if the process is killed.
func write(path string, data []byte) error {
	if err := os.WriteFile(path+".new", data, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
