package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The second file that the example's trainer writes.
const cardFile = "model.yaml"

// trainTexts runs examples/intents, which trains its model on one bot's messages. These messages
// are also the scenario's events.
func (w *scoreBench) trainTexts(ctx context.Context) (err error) {
	source := filepath.Join(sourceFolder(filepath.Join("..", "examples", "intents")), "data", "bot-shop")
	out := filepath.Join(w.folder, "intents")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, w.built.texts)
	c.Env = append(os.Environ(), "TIDEMILL_IN="+source, "TIDEMILL_OUT="+out)
	if said, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("train the model of examples/intents: %w: %s", err, said)
	}
	w.model = filepath.Join(out, modelFile)
	w.fleet.Texts, err = readTexts(source)
	return err
}

// readTexts reads the first column of all CSV files of a folder.
func readTexts(folder string) (all []string, err error) {
	err = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".csv") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		rows, err := csv.NewReader(f).ReadAll()
		for i, row := range rows {
			if i > 0 {
				all = append(all, row[0])
			}
		}
		return errors.Join(err, f.Close())
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there are no messages below %s; run this from the repository's root", folder)
	}
	return all, err
}
