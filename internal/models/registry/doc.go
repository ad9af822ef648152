// Package registry registers versions, has them judged, and promotes them: it
// turns ends of runs and wishes of people into facts of models. What they come
// to the log decides; DESIGN.md says how.
package registry
