package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"

	"tidemill.dev/api"
)

// keep writes the next state of the run into the checkpoint.
func (a *attempt) keep(env map[string]string, n int) error {
	text := fmt.Appendf(nil, "step %d of %s", n, a.of.Name)
	a.mu.Lock()
	r := a.runs[a.of.Run]
	r.states[digest(text)] = len(r.states) + 1
	a.mu.Unlock()
	return os.WriteFile(filepath.Join(env["TIDEMILL_CHECKPOINT"], "state"), text, 0o600)
}

// RoundTrip notes the checkpoints that a gateway acknowledges, and the state of the run that it answers to the report of an end.
func (a *attempt) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := a.wire.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusOK {
		return res, err
	}
	switch path.Base(r.URL.Path) {
	case "checkpoint":
		err = a.saved(r)
	case "finish":
		err = a.told(res)
	}
	return res, err
}

// saved notes the states of a checkpoint.
func (a *attempt) saved(r *http.Request) error {
	body, err := r.GetBody()
	var taken api.CheckpointTaken
	if err == nil {
		err = json.NewDecoder(body).Decode(&taken)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := a.runs[a.of.Run]
	for _, f := range taken.Files {
		of.saved = max(of.saved, of.states[f.Digest])
	}
	return err
}

// told notes the state in an answer, and puts the answer's body back for the agent.
func (a *attempt) told(res *http.Response) error {
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close() // it has been read
	res.Body = io.NopCloser(bytes.NewReader(body))
	var end api.Finished
	if err == nil {
		err = json.Unmarshal(body, &end)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if of := a.runs[a.of.Run]; of != nil { // the command may never have begun
		of.ended = end.State
	}
	return err
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// resumed checks that a checkpoint has a state of this run, and none older than one that was acknowledged before the
// attempt began. The first attempt has no checkpoint.
func (a *attempt) resumed(r *ranRun, env map[string]string) {
	state, err := os.ReadFile(filepath.Join(env["TIDEMILL_CHECKPOINT"], "state"))
	got := r.states[digest(state)]
	if is := err == nil; is != (got > 0) || got < a.least && a.of.Number > 1 {
		wrong := fmt.Sprintf("attempt %s of %s begins with state %d %q, and state %d was acknowledged before", a.of.Name, r.key, got, state, a.least)
		a.w.history.say("WRONG: %s", wrong)
		a.w.report([]string{wrong})
	}
}
