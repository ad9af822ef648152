// Package fleet makes the input of scorer measurements: many small models as ONNX files, and events
// whose keys are distributed like those of real bots. It also has a slow evaluation of the models,
// with which answers are compared. Everything is computed from seeds, so that every process can
// make the same models and events itself.
package fleet
