package lineage

import (
	"fmt"
	"strconv"

	"tidemill.dev"
	"tidemill.dev/api"
)

func titleOfCommit(id, dataset, branch string) string {
	text := "commit " + shortID(id)
	if dataset != "" {
		text += " of " + dataset
	}
	if branch != "" {
		text += " (" + branch + ")"
	}
	return text
}

// ofCommit is a commit of a dataset.
func ofCommit(c *api.Commit) *thing {
	t := newThing(commitRef(c.Dataset, c.ID), titleOfCommit(c.ID, c.Dataset, c.Branch))
	t.dataset = c.Dataset
	t.node.State, t.node.Time, t.node.Said = "committed", at(c.Time), c.Message
	t.say(joined(count(c.Files, "file"), size(c.Bytes)))
	t.say(fmt.Sprintf("+%d ~%d -%d", c.Added, c.Changed, c.Removed))
	if c.By != "" {
		t.say("by " + c.By)
	}
	t.fact("dataset", c.Dataset)
	t.fact("branch", c.Branch)
	t.fact("commit", c.ID)
	t.fact("number", strconv.FormatInt(c.Number, 10))
	t.fact("tree", c.Tree)
	t.fact("files", strconv.Itoa(c.Files))
	t.fact("bytes", strconv.FormatInt(c.Bytes, 10))
	t.fact("by", c.By)
	t.fact("run", c.Run)
	t.fact("message", c.Message)
	if c.Run != "" {
		t.cause(api.EdgeMade, runRef(c.Run), nil)
	}
	if c.Parent != "" {
		t.aside(api.EdgeFollowed, commitRef(c.Dataset, c.Parent), nil)
	}
	return t
}

// tellingOf is the event that a commit was announced by. Its id follows from the
// commit.
func tellingOf(names tidemill.Names, c *api.Commit) *thing {
	to := eventRef(tidemill.Cause{Source: names.Source("data"), ID: tidemill.ID(tidemill.TypeNewData, c.Dataset, c.Branch, c.ID)})
	t := newThing(to, titleOfEvent(tidemill.TypeNewData, c.Subject, to.at, to.of))
	t.key = c.Subject
	t.node.Time = at(c.Time)
	t.fact("id", to.at)
	t.fact("source", to.of)
	t.fact("type", tidemill.TypeNewData)
	t.fact("subject", c.Subject)
	return t
}
