// Package drift finds the models whose answers, scores, inputs or accuracy are no longer what they were
// when the version was promoted. It keeps histograms of bounded size for each model, compares the last
// answers with the first ones, and keeps a budget of false alarms over the whole fleet. All functions are pure.
package drift
