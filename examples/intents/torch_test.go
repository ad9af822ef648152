//go:build torch

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pytorchCommand returns a call of the PyTorch trainer, or of another command in its environment,
// with the variables of a run. It uses one thread, because there is little work and other tests
// run, and the GPU whose index is in TIDEMILL_TORCH_GPU, if there is one.
func (f *runFolders) pytorchCommand(arguments ...string) (*exec.Cmd, *bytes.Buffer) {
	f.Helper()
	python := os.Getenv("TIDEMILL_TORCH")
	if python == "" {
		f.Fatal("find PyTorch by TIDEMILL_TORCH: run make test-examples")
	}
	cmd, said := exec.CommandContext(f.Context(), python, arguments...), new(bytes.Buffer)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = "torch", said, said, 10*time.Second
	cmd.Env = append(os.Environ(), "TIDEMILL_IN="+f.in, "TIDEMILL_OUT="+f.out, "TIDEMILL_CHECKPOINT="+f.checkpoint, "TIDEMILL_CHAMPION="+f.champion,
		"OMP_NUM_THREADS=1", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "CUDA_VISIBLE_DEVICES="+os.Getenv("TIDEMILL_TORCH_GPU"))
	return cmd, said
}

func (f *runFolders) pytorchRuns(arguments ...string) string {
	f.Helper()
	cmd, said := f.pytorchCommand(arguments...)
	if err := cmd.Run(); err != nil {
		f.Fatalf("%v\n%s", err, said)
	}
	return said.String()
}

// The PyTorch trainer keeps the same contract: its model takes original text, and it measures a
// champion of the Go trainer on the same messages.
func TestTorchByTheContract(t *testing.T) {
	t.Parallel()
	first := newRun(t, filepath.Join("data", "bot-bank"))
	first.train("")
	f := newRun(t, filepath.Join("data", "bot-bank"))
	f.champion = first.out
	said := f.pytorchRuns("train.py")
	told, rows := f.readMetrics(), f.predictions()
	if !slices.Equal(rows[0], []string{"truth", "predicted", "champion"}) || accuracy(rows, 1) != told.Accuracy || told.Accuracy < 0.8 {
		t.Errorf("%v, %v by its predictions, told %+v\n%s", rows[0], accuracy(rows, 1), told, said)
	}
	for i, row := range first.predictions() {
		if i > 0 && (row[0] != rows[i][0] || row[1] != rows[i][2]) {
			t.Errorf("row %d: the champion said %s, and says %s", i, row[1], rows[i][2])
		}
	}
	if losses := f.readLosses(); len(losses) != 60 || losses[59] > losses[0]/2 {
		t.Errorf("the loss goes %v", losses)
	}
	d, err := readData(f.in)
	if err != nil {
		t.Fatal(err)
	}
	texts := oddTexts()
	for _, msg := range d.held {
		texts = append(texts, msg.text)
	}
	cmd, _ := f.pytorchCommand()
	cmd.Stdout = nil
	probabilities := onnxRuntime(t, cmd, filepath.Join(f.out, "model.onnx"), texts)
	m := newModel(d.learn) // only for its labels
	for i, p := range probabilities[len(oddTexts()):] {
		if best := slices.Index(p, slices.Max(p)); m.labels[best] != rows[i+1][1] {
			t.Errorf("%q is %s to ONNX Runtime and %s to the trainer", d.held[i].text, m.labels[best], rows[i+1][1])
		}
	}
	f.wantCard(m)
}

// A run that is interrupted continues, and makes the same model as without the break.
func TestTorchGoesOn(t *testing.T) {
	t.Parallel()
	whole, broken := newRun(t, filepath.Join("data", "bot-shop")), newRun(t, filepath.Join("data", "bot-shop"))
	whole.pytorchRuns("train.py")
	broken.stopTrainer("train.py")
	if said := broken.pytorchRuns("train.py"); !strings.Contains(said, "goes on from step ") {
		t.Fatalf("it says %s", said)
	}
	if !bytes.Equal(whole.read("model.onnx"), broken.read("model.onnx")) {
		t.Error("a run that was interrupted makes another model")
	}
	if a, b := whole.readLosses(), broken.readLosses(); !slices.Equal(a, b) {
		t.Errorf("the losses are %v and %v", a, b)
	}
}

// stopTrainer sends SIGTERM to the trainer after its first line of metrics.
func (f *runFolders) stopTrainer(arguments ...string) {
	f.Helper()
	cmd, said := f.pytorchCommand(arguments...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for begun := false; !begun; {
		data, err := os.ReadFile(filepath.Join(f.out, "metrics.jsonl"))
		begun = err == nil && len(data) > 0
		select {
		case err := <-ended:
			f.Fatalf("it ends before it is asked to: %v\n%s", err, said)
		case <-time.After(time.Millisecond):
		}
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil { // the agent also sends it to the group
		f.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(said.String(), "asked to leave at step ") {
		f.Fatalf("%v\n%s", err, said)
	}
	if _, err := os.Stat(filepath.Join(f.out, "model.onnx")); err == nil {
		f.Error("it has left a model that is not learned")
	}
}

// Two workers learn one model. Each has its share of every batch, and the first one writes. They
// exit and continue together.
func TestTorchWithTwoWorkers(t *testing.T) {
	t.Setenv("TIDEMILL_TORCH_GPU", "") // two workers cannot have one GPU
	f := newRun(t, filepath.Join("data", "bot-shop"))
	f.runWorkers(true)
	if said := f.runWorkers(false); !strings.Contains(said, "goes on from step ") || !strings.Contains(said, "2 workers") || strings.Count(said, "goes on") != 1 {
		t.Errorf("it says %s", said)
	}
	if told := f.readMetrics(); told.Accuracy < 0.75 || accuracy(f.predictions(), 1) != told.Accuracy {
		t.Errorf("%+v", told)
	}
	if losses := f.readLosses(); len(losses) != 60 || losses[59] > losses[0]/2 {
		t.Errorf("the loss goes %v", losses)
	}
}

// runWorkers runs the trainer under torchrun.
func (f *runFolders) runWorkers(leave bool) string {
	f.Helper()
	arguments := []string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", fmt.Sprint(2), "train.py"}
	if leave {
		f.stopTrainer(arguments...)
		return ""
	}
	return f.pytorchRuns(arguments...)
}
