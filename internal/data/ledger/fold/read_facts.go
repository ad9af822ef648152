package fold

import "tidemill.dev"

// The facts of nearly every run are read field by field. encoding/json reads rare fields,
// and the whole fact if it has a field that is not here. So a new field is read correctly
// without a line here, and quickly with one.

func readRequested(q *reading, d *tidemill.RunRequested) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "cause":
			readCause(q, &d.Cause)
		case "events":
			d.Events = listOf(q, d.Events, q.readRaw)
		case "debounce":
			d.Debounce = q.duration()
		case "maxWait":
			d.MaxWait = q.duration()
		case "delay":
			d.Delay = q.duration()
		case "priority":
			d.Priority = q.int()
		case "again":
			d.Again = q.readText()
		case "config":
			d.Config = q.readText()
		default:
			q.giveUp()
		}
	})
}

func readCause(q *reading, c *tidemill.Cause) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "source":
			c.Source = q.readText()
		case "id":
			c.ID = q.readText()
		default:
			q.giveUp()
		}
	})
}

func readStarted(q *reading, d *tidemill.RunStarted) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "attempt":
			d.Attempt = q.int()
		case "causes":
			d.Causes = q.int()
		case "seen":
			d.Seen = q.int64()
		case "plan":
			if d.Plan != nil {
				q.giveUp()
			}
			d.Plan = &tidemill.Plan{}
			readPlan(q, d.Plan)
		case "mac":
			d.MAC = q.readText()
		default:
			if !readWhere(q, &d.Where, name) {
				q.giveUp()
			}
		}
	})
}

func readWhere(q *reading, w *tidemill.Where, name []byte) bool {
	switch string(name) {
	case "node":
		w.Node = q.readText()
	case "card":
		w.Card = q.readText()
	case "driver":
		w.Driver = q.readText()
	case "gpus":
		w.GPUs = listOf(q, w.GPUs, q.int)
	case "image":
		w.Image = q.readText()
	case "resumedFrom":
		w.ResumedFrom = q.readText()
	default:
		return false
	}
	return true
}

func readFinished(q *reading, d *finishedFact) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "attempt":
			d.Attempt = q.int()
		case "outcome":
			d.Outcome = tidemill.Outcome(q.readText())
		case "reason":
			d.Reason = q.readText()
		case "permanent":
			d.Permanent = q.bool()
		case "saved":
			d.Saved = q.bool()
		case "candidate":
			q.skip()
		default:
			if !readWhere(q, &d.Where, name) && !readResult(q, &d.Result, name) {
				q.giveUp()
			}
		}
	})
}

func readResult(q *reading, r *tidemill.Result, name []byte) bool {
	switch string(name) {
	case "exit":
		r.Exit = q.int()
	case "signal":
		r.Signal = q.readText()
	case "peakMemory":
		r.PeakMemory = q.int64()
	case "gpuSeconds":
		r.GPUSeconds = q.float()
	case "stages":
		r.Stages = listOf(q, r.Stages, func() tidemill.Stage { return readStage(q) })
	case "artifact":
		r.Artifact = q.readText()
	case "bytes":
		r.Bytes = q.int64()
	case "files":
		r.Files = q.int()
	case "metrics":
		r.Metrics = mapOf(q, r.Metrics, q.float)
	case "lastLines":
		r.LastLines = q.readText()
	case "logBytes":
		r.LogBytes = q.int64()
	case "cut":
		r.Cut = q.bool()
	default:
		return false
	}
	return true
}

func readStage(q *reading) (s tidemill.Stage) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "name":
			s.Name = q.readText()
		case "seconds":
			s.Seconds = q.float()
		default:
			q.giveUp()
		}
	})
	return s
}

func readPlan(q *reading, p *tidemill.Plan) {
	q.readObject(func(name []byte) {
		if !readWork(q, p, name) && !readMaking(q, p, name) {
			q.giveUp()
		}
	})
}

// readWork reads the fields that say what runs, on which hardware.
func readWork(q *reading, p *tidemill.Plan, name []byte) bool {
	switch string(name) {
	case "team":
		p.Team = q.readText()
	case "image":
		p.Image = q.readText()
	case "dir":
		p.Dir = q.readText()
	case "command":
		p.Command = listOf(q, p.Command, q.readText)
	case "env":
		p.Env = mapOf(q, p.Env, q.readText)
	case "secrets":
		p.Secrets = mapOf(q, p.Secrets, q.readText)
	case "cpu":
		p.CPU = q.float()
	case "memory":
		p.Memory = q.int64()
	case "gpus":
		p.GPUs = q.int()
	case "pool":
		p.Pool = q.readText()
	case "priority":
		p.Priority = q.int()
	case "workers":
		p.Workers = q.int()
	case "servers":
		q.readSlowly(&p.Servers)
	case "inside":
		q.readSlowly(&p.Inside)
	default:
		return false
	}
	return true
}

// readMaking reads the limits of a run, its inputs and its output.
func readMaking(q *reading, p *tidemill.Plan, name []byte) bool {
	switch string(name) {
	case "deadline":
		p.Deadline = q.duration()
	case "grace":
		p.Grace = q.duration()
	case "attempts":
		p.Attempts = q.int()
	case "backoff":
		readBackoff(q, &p.Backoff)
	case "inputs":
		p.Inputs = listOf(q, p.Inputs, func() tidemill.Input { return readInput(q) })
	case "model":
		p.Model = q.readText()
	case "judge":
		if p.Judge != nil {
			q.giveUp()
		}
		p.Judge = readJudge(q)
	case "champion":
		q.readSlowly(&p.Champion)
	case "dataset":
		p.Dataset = q.readText()
	case "branch":
		p.Branch = q.readText()
	case "maxOutput":
		p.MaxOutput = q.int64()
	case "maxLog":
		p.MaxLog = q.int64()
	default:
		return false
	}
	return true
}

func readBackoff(q *reading, b *tidemill.Backoff) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "first":
			b.First = q.duration()
		case "cap":
			b.Cap = q.duration()
		default:
			q.giveUp()
		}
	})
}

func readInput(q *reading) (in tidemill.Input) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "name":
			in.Name = q.readText()
		case "dataset":
			in.Dataset = q.readText()
		case "branch":
			in.Branch = q.readText()
		case "commit":
			in.Commit = q.readText()
		case "tree":
			in.Tree = q.readText()
		case "files":
			in.Files = q.int()
		case "bytes":
			in.Bytes = q.int64()
		case "uri":
			in.URI = q.readText()
		case "allow":
			in.Allow = listOf(q, in.Allow, q.readText)
		default:
			q.giveUp()
		}
	})
	return in
}

func readJudge(q *reading) *tidemill.Judge {
	j := &tidemill.Judge{}
	q.readObject(func(name []byte) {
		switch string(name) {
		case "gate":
			j.Gate = listOf(q, j.Gate, q.readText)
		case "on":
			j.On = tidemill.GateOn(q.readText())
		case "promote":
			j.Promote = tidemill.Promote(q.readText())
		case "keep":
			j.Keep = q.int()
		default:
			q.giveUp()
		}
	})
	return j
}

// rule is the part of a plan that decides what follows the end of an attempt.
type rule struct {
	Dataset  string           `json:"dataset"`
	Attempts int              `json:"attempts"`
	Backoff  tidemill.Backoff `json:"backoff"`
}

// readRule skips other fields. The fold wrote the plan, so its names are in the known case.
func readRule(q *reading, r *rule) {
	q.readObject(func(name []byte) {
		switch string(name) {
		case "dataset":
			r.Dataset = q.readText()
		case "attempts":
			r.Attempts = q.int()
		case "backoff":
			readBackoff(q, &r.Backoff)
		default:
			q.skip()
		}
	})
}
