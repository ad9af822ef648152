//go:build cluster

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"tidemill.dev/api"
)

const wholeLog = 5000 // lines

// A new recipe in the config works, and no pod is restarted for the change.
func TestAChangeOfTheConfigRollsNothing(t *testing.T) {
	w := cluster(t)
	w.waitAllReady(t)
	before := w.alwaysThere()
	text, err := os.ReadFile(configFile)
	must(t, err)
	changed := filepath.Join(t.TempDir(), "tidemill.yaml")
	more := `
  fresh:
    when: {type: fresh-asked}
    run: {image: "dev.local/tidemill-job:v1", command: [/job, steps, "3", 50ms], gpus: 1, pool: gpu}
    makes: {model: "fresh/{key}"}
`
	must(t, os.WriteFile(changed, withRecipe(t, string(text), more), 0o600))
	must(t, w.upgrade(t.Context(), changed))
	eventually(t, "the recipe to be known", func(ctx context.Context) error {
		all, err := w.door.Recipes(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all.Recipes, func(r api.Recipe) bool { return r.Name == "fresh" }) {
			return fmt.Errorf("there are %d others", len(all.Recipes))
		}
		return nil
	})
	w.waitForConfig(t)
	w.mustPublish(t, "fresh-asked", "fresh-0", "")
	w.succeeds(t, "fresh", "fresh-0")
	after := w.alwaysThere()
	for uid, name := range before {
		if _, still := after[uid]; !still {
			t.Errorf("%s was replaced, or started anew", name)
		}
	}
	w.noLetters(t, []string{"fresh-0"})
}

// waitForConfig waits until every pod logs that it has applied the change, because a new recipe does not
// get earlier events.
func (w *world) waitForConfig(t *testing.T) {
	t.Helper()
	for _, p := range w.seen.livePods(func(p *corev1.Pod) bool { return components()[p.Labels[labelComponent]] > 0 }) {
		eventually(t, p.Name+" to apply the change", func(ctx context.Context) error {
			text, err := w.server.log(ctx, p.Last, "tidemill", wholeLog, false)
			if err == nil && !strings.Contains(text, `msg="config: applied"`) {
				err = errors.New("its log does not say so")
			}
			return err
		})
	}
}

// alwaysThere returns the pods of the components that always run, by their ids and restart counts.
func (w *world) alwaysThere() map[string]string {
	all := map[string]string{}
	for _, p := range w.seen.livePods(func(p *corev1.Pod) bool {
		return components()[p.Labels[labelComponent]] > 0 && p.Labels[labelRelease] == release
	}) {
		all[fmt.Sprint(p.Last.UID, restarts(p.Last))] = p.Name
	}
	return all
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// withRecipe puts a recipe into the config, above its scorers.
func withRecipe(t *testing.T, text, recipe string) []byte {
	t.Helper()
	const mark = "\nscorers:\n"
	before, after, ok := strings.Cut(text, mark)
	if !ok {
		t.Fatal("testdata/tidemill.yaml has no scorers")
	}
	return []byte(before + recipe + mark + after)
}
