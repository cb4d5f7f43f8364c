package train

import (
	"octet/backend"
	"octet/backend/cost"
)

// Runs returns the programs of one training step, for cost.NewStep. lowered are the job's programs
// as backend.Lower returned them. A health pass counts by how often it runs; evaluation,
// calibration and checkpoints are left out.
func (j *Job) Runs(lowered []*backend.Program) (runs []cost.Run) {
	times := map[string]float64{j.Update.Name(): 1}
	last := j.Config.Train.Accumulate - 1
	for i := range j.Config.Train.Accumulate {
		times[j.Micro[Variant{First: i == 0, Last: i == last}].Name()]++
	}
	if j.Health != nil {
		times[j.Health.Name()] = 1 / float64(j.Config.Train.HealthEvery)
	}
	for _, p := range lowered {
		if n := times[p.Name()]; n > 0 {
			runs = append(runs, cost.Run{Program: p, Times: n})
		}
	}
	return runs
}
