package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func runsShowCommand() command.Command {
	return command.Command{
		Name:    "runs show",
		Daily:   true,
		Args:    "RUN",
		Summary: "show a run: its causes, input data, attempts and result",
		About:   `The first six letters of the id are enough, if no other id begins with them.`,
		Examples: []command.Example{
			{"tidemill runs show 3k7mzq", "by the beginning of its id"},
			{"tidemill runs show 3k7mzq -o json", "for a script"},
		},
		Make: func() command.Program { return &request{json: true, do: doRunShow} },
	}
}

func doRunShow(ctx context.Context, c *call) error {
	whole, err := c.g.Run(ctx, c.positional[0])
	switch {
	case err != nil:
		return err
	case c.json:
		return writeIndented(c.Stdout, whole)
	}
	became, err := becameOfRun(ctx, c.g, &whole)
	if err != nil {
		return err
	}
	return showRun(c.Stdout, &whole, became, time.Now())
}

// showRun prints a run for people.
func showRun(out io.Writer, whole *api.RunWhole, became string, now time.Time) error {
	say, flush := labelledLines(out)
	sayHead(say, whole, now)
	sayPlan(say, whole.Plan)
	sayResult(say, &whole.RunShown)
	say("became", became)
	if err := flush(); err != nil {
		return err
	}
	if err := showTries(out, whole, now); err != nil {
		return err
	}
	showLastLines(out, whole)
	if err := showCauses(out, whole); err != nil {
		return err
	}
	_, err := fmt.Fprint(out, nextForRun(whole))
	return err
}

func sayHead(say func(what, text string), whole *api.RunWhole, now time.Time) {
	r := &whole.RunShown
	say("run", r.ID+", "+string(r.State))
	say("recipe", r.Recipe+" for "+orDash(r.Key))
	say("waits", r.Waits)
	if r.Progress != nil {
		say("progress", progressText(r.Progress, r.GateMetrics...)+", reported "+ago(r.Progress.Time)+" ago")
	}
	say("reason", r.Reason)
	asked := clock(r.Asking)
	if r.By != "" {
		asked += " by " + r.By
	}
	say("requested", asked+", by "+show.Count(r.Causes, "event"))
	if r.Again != "" {
		say("again", "it is a retry of run "+r.Again)
	}
	if c := r.Cancel; c != nil {
		say("cancelled", strings.TrimSuffix(clock(c.At)+" by "+orSomebody(c.By)+": "+c.Reason, ": "))
	}
	if len(r.Attempts) > 0 {
		say("took", tookOf(r, now)+", began "+roughSpan(r.Attempts[0].Started.Sub(r.Asking))+" after its request")
	}
	say("commit", r.Commit)
}

func sayPlan(say func(what, text string), p *tidemill.Plan) {
	if p == nil {
		return
	}
	what := p.Image
	if what == "" {
		what = p.Dir
	}
	switch command := strings.Join(p.Command, " "); {
	case what == "":
		return // its inputs are missing, so nothing was planned
	case command == "":
		say("runs", what)
	default:
		say("runs", command+" in "+what)
	}
	say("where", hardware(p))
	for _, in := range p.Inputs {
		say("input", inputText(&in))
	}
	switch {
	case p.Model != "":
		say("makes", "model "+p.Model)
	case p.Dataset != "":
		say("makes", "a commit on dataset "+p.Dataset+" at "+p.Branch)
	}
}

func hardware(p *tidemill.Plan) string {
	text := "pool " + p.Pool
	if p.GPUs > 0 {
		text += ", " + show.Count(p.GPUs, "GPU")
	}
	if p.CPU > 0 {
		text += ", " + number(p.CPU) + " CPUs"
	}
	if p.Memory > 0 {
		text += ", " + show.Size(p.Memory)
	}
	return text + ", " + roughSpan(p.Deadline) + " at most, " + show.Count(max(p.Attempts, 1), "attempt")
}

func inputText(in *tidemill.Input) string {
	if in.URI != "" {
		return in.Name + ": " + in.URI
	}
	if in.Outcomes != "" {
		return fmt.Sprintf("%s: %s of scorer %s (%s)", in.Name, show.Count(in.Rows, "outcome"), in.Outcomes, show.Size(in.Bytes))
	}
	return fmt.Sprintf("%s: %s at %s, commit %s (%s, %s)", in.Name, in.Dataset, in.Branch, orDash(in.Commit), show.Count(in.Files, "file"), show.Size(in.Bytes))
}

func sayResult(say func(what, text string), r *api.RunShown) {
	if r.Result == nil {
		return
	}
	for _, name := range telling(r.Result.Metrics, r.GateMetrics...) {
		say(name, number(r.Result.Metrics[name]))
	}
	if r.Result.Artifact != "" {
		say("made", fmt.Sprintf("%s, %s, tree %s", show.Count(r.Result.Files, "file"), show.Size(r.Result.Bytes), r.Result.Artifact))
	}
	if r.State.Ended() && (r.Result.Exit >= 0 || r.Result.Signal != "") {
		say("ended", howItEnded(r.Result))
	}
	if r.Result.LogBytes > 0 {
		cutText := ""
		if r.Result.Cut {
			cutText = ", the rest was not stored"
		}
		say("log", show.Size(r.Result.LogBytes)+cutText)
	}
}

// howItEnded describes the end of the last attempt's command.
func howItEnded(r *tidemill.Result) string {
	text := fmt.Sprintf("exit code %d", r.Exit)
	if r.Signal != "" {
		text = "by " + r.Signal
	}
	if r.PeakMemory > 0 {
		text += ", " + show.Size(r.PeakMemory) + " of memory at most"
	}
	if r.GPUSeconds > 0 {
		text += ", " + number(r.GPUSeconds) + " GPU seconds"
	}
	return text
}

func showTries(out io.Writer, whole *api.RunWhole, now time.Time) error {
	r := &whole.RunShown
	if len(r.Attempts) == 0 {
		return nil
	}
	rows := [][]string{{"ATTEMPT", "STARTED", "TOOK", "OUTCOME", "WHERE", "IMAGE", ""}}
	for i := range r.Attempts {
		a := &r.Attempts[i]
		end, outcome := a.Ended, string(a.Outcome)
		if end.IsZero() {
			end, outcome = now, "running"
		}
		rows = append(rows, []string{fmt.Sprint(a.Number), clock(a.Started), roughSpan(end.Sub(a.Started)), show.Harmless(outcome), show.Harmless(placeOfTry(a)), orDash(show.Harmless(shortDigest(a.Image))), show.Harmless(reasonOfTry(a))})
	}
	fmt.Fprintln(out)
	if err := show.Columns(out, rows); err != nil {
		return err
	}
	if r.Result != nil && len(r.Result.Stages) > 0 {
		fmt.Fprintf(out, "Stages of the last attempt that reported them: %s\n", show.Harmless(stagesText(r.Result.Stages)))
	}
	return nil
}

func placeOfTry(a *tidemill.Attempt) string {
	parts := []string{orDash(a.Node)}
	if a.Card != "" {
		parts = append(parts, a.Card)
	}
	if a.Driver != "" {
		parts = append(parts, "driver "+a.Driver)
	}
	if len(a.GPUs) > 0 {
		parts = append(parts, "GPU "+strings.Trim(fmt.Sprint(a.GPUs), "[]"))
	}
	if a.ResumedFrom != "" {
		parts = append(parts, "from a checkpoint")
	}
	if a.Saved {
		parts = append(parts, "with a new checkpoint")
	}
	return strings.Join(parts, ", ")
}

// digestLetters is how much of a digest people see; -o json has all of it.
const digestLetters = 12

func shortDigest(d string) string {
	_, hex, found := strings.Cut(d, "sha256:")
	if !found {
		hex = d
	}
	return show.Cut(hex, digestLetters)
}

// reasonOfTry says why an attempt ended, or why it does not run yet.
func reasonOfTry(a *tidemill.Attempt) string {
	if a.Pending != "" {
		return "pending: " + a.Pending
	}
	return a.Reason
}

func stagesText(stages []tidemill.Stage) string {
	var parts []string
	for _, s := range stages {
		parts = append(parts, s.Name+" "+roughSpan(time.Duration(s.Seconds*float64(time.Second))))
	}
	return strings.Join(parts, ", ")
}

func showLastLines(out io.Writer, whole *api.RunWhole) {
	if r := whole.Result; r != nil && r.LastLines != "" && whole.State != tidemill.RunSucceeded {
		fmt.Fprintf(out, "\nEnd of its log:\n%s", indented(r.LastLines))
	}
}

const shownCauses = 10

func showCauses(out io.Writer, whole *api.RunWhole) error {
	events := whole.Events[max(0, len(whole.Events)-shownCauses):]
	if len(events) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nCauses:")
	if left := whole.Causes - len(events); left > 0 {
		fmt.Fprintf(out, "  … %s before\n", show.Count(left, "event"))
	}
	for _, text := range events {
		var v broker.View
		if err := broker.UnmarshalStructured(text, &v); err != nil {
			return fmt.Errorf("read the causes of run %s: %w", whole.ID, err)
		}
		fmt.Fprintf(out, "  %-16s %-12s %s  %s\n", show.Harmless(v.Type), orDash(show.Harmless(v.Subject)), show.Harmless(v.ID), glimpse(&v))
	}
	return nil
}

// nextForRun suggests the next command for a run.
func nextForRun(whole *api.RunWhole) string {
	id := show.ShortID(whole.ID)
	switch {
	case whole.State.Ended() && (whole.Result == nil || whole.Result.LogBytes == 0):
		return "\nNext: tidemill runs retry " + id + "\n"
	case whole.State == tidemill.RunFailed, whole.State == tidemill.RunCancelled:
		return "\nNext: tidemill logs " + id + "\n      tidemill runs retry " + id + "\n"
	case whole.State == tidemill.RunRunning:
		return "\nNext: tidemill logs " + id + " -f\n      tidemill runs cancel " + id + "\n"
	case !whole.State.Ended():
		return "\nNext: tidemill runs cancel " + id + "\n"
	}
	return "\nNext: tidemill logs " + id + "\n"
}

// becameOfRun describes the version that a run has made, and its verdict; empty if there is none.
func becameOfRun(ctx context.Context, g *client.Gateway, whole *api.RunWhole) (string, error) {
	if whole.Plan == nil || whole.Plan.Model == "" || whole.State != tidemill.RunSucceeded {
		return "", nil
	}
	m, err := g.Model(ctx, whole.Plan.Model, "")
	switch {
	case client.Status(err) == http.StatusNotFound:
		return "not registered yet", nil
	case err != nil:
		return "", err
	}
	return becameText(&m, whole.ID), nil
}

func becameText(m *api.ModelWhole, run string) string {
	for i := range m.All {
		if v := &m.All[i]; v.Run == run {
			return fmt.Sprintf("version %d of %s (%s): %s", v.Number, m.Name, stateOfVersion(m, v), reasonOf(v))
		}
	}
	return "a version that is not registered yet, or no longer stored"
}

const (
	runBar         = 16 // width of a progress bar
	headlinedCount = 2  // number of metrics in a line
	headlinedMost  = 4  // number of metrics in a line if a gate names so many
)
