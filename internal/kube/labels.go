package kube

import (
	"tidemill.dev"
	"tidemill.dev/internal/runs"
)

// The labels that our objects bear. An install is told from others by the first,
// which stands on everything of ours.
const (
	LabelInstall = "tidemill.dev/install"
	LabelRun     = "tidemill.dev/run"
	LabelAttempt = "tidemill.dev/attempt" // its whole name; of a pod that was taken over, that of the attempt it does now
	LabelRecipe  = "tidemill.dev/recipe"
	LabelPool    = "tidemill.dev/pool"
	LabelTeam    = "tidemill.dev/team"
	LabelPart    = "tidemill.dev/part" // worker or server
	LabelScorer  = "tidemill.dev/scorer"

	labelQueue = "kueue.x-k8s.io/queue-name"
)

// AnnotationKey holds the key of a run, which is any text and so no label.
const AnnotationKey = "tidemill.dev/key"

// The parts of an attempt.
const (
	partWorker = "worker"
	partServer = "server"
)

// The containers of a pod.
const (
	containerRun     = "run"     // the user's image
	containerInstall = "install" // ours, which brings the agent
)

// labelsOf are the labels of all that belongs to an attempt.
func labelsOf(names tidemill.Names, a runs.Attempt) map[string]string {
	all := map[string]string{LabelInstall: names.Install(), LabelRun: a.Run, LabelAttempt: a.Name,
		LabelRecipe: a.Recipe, LabelPool: a.Plan.Pool}
	if a.Plan.Team != "" {
		all[LabelTeam] = a.Plan.Team
	}
	return all
}
