// Package sweep trains the runs of a sweep file, several at a time, and compares them, for
// octet sweep.
//
// The file lists values of some dimensions: recipes, backends, texts, and configuration
// keys. A variant is one combination of values; it runs once for each seed. [Open] reads the file
// (file.go, variant.go), checks every run before the first one starts (check.go), and lists
// the runs that are done. [Sweep.Train] starts the others as child processes (train.go).
// [Sweep.Summaries] compares the variants (results.go).
//
// The folder of a sweep has these files:
//
//	sweep.toml                    the variants, their baselines and seeds (manifest.go)
//	configs/VARIANT/config.toml   configuration of a variant
//	runs/VARIANT/seed-N/          run folders
//	logs/VARIANT/seed-N.log       output of the runs
//	failures.json                 the errors of runs that failed
//	results.csv                   one line for each run
package sweep
