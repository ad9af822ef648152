// Package fleet makes what scorers are measured with: many small models as ONNX
// files, events whose keys are drawn as those of real bots would be, and an own
// slow evaluation of the models that answers are held against. All of it follows
// from numbers, so that every process that needs a model or an event makes the
// same one for itself.
package fleet
