package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/data"
	"octet/internal/config"
	"octet/internal/disk"
	"octet/internal/writers"
	"octet/train"
)

// The files of a run folder.
const (
	configFile     = "config.toml"
	dataFile       = "data.json"
	choicesFile    = "choices.json" // what the device chose by time, see backend.Chooser
	metricsFile    = writers.MetricsFile
	timingFile     = writers.TimingFile
	logFile        = writers.RunLogFile
	traceFile      = "trace.json"
	checkpointsDir = checkpoint.Dir
	lockFile       = checkpoint.LockFile
)

// Folder is a run folder that this process has locked.
type Folder struct {
	Dir    string
	unlock func() error
	info   fs.FileInfo // of the folder itself
	made   string      // the topmost folder that this process had to make; empty if none
}

// ErrHeld says that a folder for a new run holds one.
var ErrHeld = errors.New("holds a run already")

// Create makes a run folder, which must not hold anything yet, and writes the
// resolved config into it.
func Create(dir string, c train.Config) (*Folder, error) {
	f := &Folder{Dir: dir, made: topmostMissing(dir)}
	if err := disk.MakeDirs(dir); err != nil {
		f.removeMade()
		return nil, fmt.Errorf("the run folder cannot be made: %w; name another one by --out", err)
	}
	if err := f.lock(); err != nil {
		f.removeMade()
		return nil, err
	}
	// Looked for under the lock: of two processes one makes the run.
	if err := vacant(dir); errors.Is(err, ErrHeld) {
		return nil, errors.Join(err, f.unlock())
	} else if err != nil {
		return nil, errors.Join(err, f.removeLock())
	}
	if err := f.writeConfig(c); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// checkVacant is the error of Create where a folder is there that is not for a new run.
func checkVacant(dir string) error {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil // Create says what is wrong
	}
	err := vacant(dir)
	if !errors.Is(err, ErrHeld) {
		return err
	}
	unlock, lockErr := checkpoint.Lock(dir)
	if lockErr != nil {
		return lockErr
	}
	return errors.Join(err, unlock())
}

// vacant is an error if a run would lie among files that are not its own, which Discard
// and a run's own records could not tell from them. Hidden ones do not count: the lock is
// one, and file systems leave others, as they do lost+found where a volume of its own is
// mounted. Nor does what a shell or a scheduler was told to write there of the run's output,
// nor an empty folder for the checkpoints: a volume may be mounted there before the run begins.
func vacant(dir string) error {
	if exists(ConfigPath(dir)) {
		return fmt.Errorf("--out %s %w: name another folder, or go on with the run by --resume", dir, ErrHeld)
	}
	if name := remains(dir); name != "" {
		return fmt.Errorf("--out %s holds %s but no %s: put the run's %[3]s back and resume it, or move %[2]s away, or name another folder", dir, name, configFile)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the run folder cannot be looked into: %w; name another one by --out", err)
	}
	for _, e := range entries {
		output := e.Name() != logFile && slices.Contains([]string{".log", ".out", ".err"}, filepath.Ext(e.Name()))
		if !output && !ofFileSystem(e) && e.Name() != checkpointsDir {
			return fmt.Errorf("--out %s holds %.80q, which is no run's: name a new folder, or an empty one", dir, e.Name())
		}
	}
	return nil
}

// remains names what a folder without a config.toml holds of a run; empty if nothing.
func remains(dir string) string {
	checkpoints := filepath.Join(dir, checkpointsDir)
	if info, err := os.Lstat(checkpoints); err == nil {
		entries, err := os.ReadDir(checkpoints)
		// Resume refuses a link: a run must not begin with one.
		if err != nil || !info.IsDir() || len(slices.DeleteFunc(entries, ofFileSystem)) > 0 {
			return checkpointsDir
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, metricsFile)); err == nil {
		return metricsFile
	}
	return ""
}

// ofFileSystem reports whether an entry of a folder is hidden, or is what mounting a
// volume brings along.
func ofFileSystem(e fs.DirEntry) bool {
	return strings.HasPrefix(e.Name(), ".") || e.Name() == "lost+found"
}

// Resume locks an existing run folder, and frees what checkpoints take up there
// that were never finished.
func Resume(dir string) (*Folder, error) {
	if !exists(ConfigPath(dir)) {
		return nil, notARun(dir)
	}
	// What is cut back, appended to or emptied: a link in a folder that somebody else
	// made would do that to a file of the user's. What is read: a pipe would never end.
	for _, name := range []string{metricsFile, timingFile, logFile, traceFile, dataFile, choicesFile} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is not a regular file: put one in its place, or remove it", filepath.Join(dir, name))
		}
	}
	f := &Folder{Dir: dir}
	switch info, err := os.Lstat(f.Checkpoints()); {
	case err != nil || info.IsDir():
	case info.Mode()&fs.ModeSymlink != 0: // two runs whose links lead to one folder would remove each other's
		return nil, fmt.Errorf("%s is a link, through which old checkpoints would be removed elsewhere: put the folder in its place; to have a run on another disk, let the whole run folder be a link", f.Checkpoints())
	default:
		return nil, fmt.Errorf("%s is not a folder: put the one of the run's checkpoints in its place, or remove it", f.Checkpoints())
	}
	if err := f.lock(); err != nil {
		return nil, err
	}
	if err := checkpoint.RemovePartial(f.Checkpoints()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock takes the folder for this process.
func (f *Folder) lock() (err error) {
	if f.unlock, err = checkpoint.Lock(f.Dir); err != nil {
		return err
	}
	if f.info, err = os.Stat(f.Dir); err != nil {
		return errors.Join(err, f.unlock())
	}
	return nil
}

// gone is an error if the folder is not where it was. Files that are open move with
// it; a checkpoint would be written, and others removed, in what has taken its place.
func (f *Folder) gone() error {
	if info, err := os.Stat(f.Dir); err == nil && os.SameFile(info, f.info) {
		return nil
	}
	return fmt.Errorf("the run folder %s is not there any more, or another is: if it was renamed, go on from its last checkpoint by --resume and its new name", f.Dir)
}

// notARun says what a folder without a config.toml is.
func notARun(dir string) error {
	if !exists(dir) {
		return fmt.Errorf("%s does not exist: name the folder of the run to go on with", dir)
	}
	if name := remains(dir); name != "" {
		return fmt.Errorf("%s cannot be resumed: it holds %s but no %s; put the run's %[3]s back, or begin a new run in another folder", dir, name, configFile)
	}
	return fmt.Errorf("%s is not a run folder: it has no %s", dir, configFile)
}

// ConfigPath is where the run's resolved config lies.
func ConfigPath(dir string) string { return filepath.Join(dir, configFile) }

// Checkpoints is the folder of the run's checkpoints.
func (f *Folder) Checkpoints() string { return f.path(checkpointsDir) }

func (f *Folder) path(name string) string { return filepath.Join(f.Dir, name) }

// Close unlocks the folder.
func (f *Folder) Close() error { return f.unlock() }

// Discard takes back Create where nothing was started: what this process made
// goes, a folder that was there stays as it was.
func (f *Folder) Discard() (err error) {
	names := []string{configFile, dataFile, metricsFile, timingFile, logFile}
	if f.made != "" {
		entries, readErr := os.ReadDir(f.Dir)
		err = readErr
		names = nil
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	for _, name := range names {
		if name != lockFile {
			err = errors.Join(err, disk.RemoveAll(f.path(name)))
		}
	}
	// The lock is held to the end: another process may be waiting to make its run here.
	err = errors.Join(err, f.removeLock())
	f.removeMade()
	return err
}

// removeLock unlocks the folder of no run.
func (f *Folder) removeLock() error {
	if runtime.GOOS == "windows" { // which removes no file that is open
		return errors.Join(f.unlock(), disk.RemoveAll(f.path(lockFile)))
	}
	return errors.Join(disk.RemoveAll(f.path(lockFile)), f.unlock())
}

// removeMade removes the folders that this process made, from the inside out.
// Where another process has put something into one meanwhile, that one stays.
func (f *Folder) removeMade() {
	if f.made == "" {
		return
	}
	for dir := f.Dir; ; dir = filepath.Dir(dir) {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // not empty
		}
		if dir == f.made {
			return
		}
	}
}

// topmostMissing is the first folder on the way to dir that does not exist.
func topmostMissing(dir string) (top string) {
	for dir = filepath.Clean(dir); !exists(dir) && dir != top; dir = filepath.Dir(dir) { // a drive that is not there is its own parent
		top = dir
	}
	return top
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// writeConfig writes or replaces config.toml.
func (f *Folder) writeConfig(c train.Config) error {
	text, err := config.Marshal(c)
	if err != nil {
		return err
	}
	return disk.WriteWhole(ConfigPath(f.Dir), text)
}

// recordData writes data.json, or, where it exists, insists that the corpus is
// the one that the run began with.
func (f *Folder) recordData(info data.Info) error {
	name := f.path(dataFile)
	mine, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	// One of the same corpus is as long, but for what another octet wrote.
	text, whole, err := readUpTo(name, 1<<20+2*int64(len(mine)))
	if errors.Is(err, fs.ErrNotExist) {
		return disk.WriteWhole(name, append(mine, '\n'))
	}
	if err != nil {
		return err
	}
	if !whole {
		return fmt.Errorf("%s: it is far longer than that of the corpus at hand, which takes %d bytes: put the run's own in its place, or remove it", name, len(mine))
	}
	var saved data.Info
	if err := json.Unmarshal(text, &saved); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return data.CheckSame(saved, info)
}

// choices are what the run's device chose by time; nil where it had no choice.
func (f *Folder) choices() ([]byte, error) {
	text, whole, err := readUpTo(f.path(choicesFile), maxChoices)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !whole { // nobody wrote that: they are made anew
		return nil, nil
	}
	return text, err
}

// maxChoices bounds choices.json: some hundred bytes for each product of a program.
const maxChoices = 16 << 20

// readUpTo reads a file; whole is false if it has more than most bytes.
func readUpTo(name string, most int64) (text []byte, whole bool, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, err = io.ReadAll(io.LimitReader(f, most+1))
	return text, int64(len(text)) <= most, err
}

// recordChoices keeps them for whoever resumes the run.
func (f *Folder) recordChoices(choices []byte) error {
	if choices == nil {
		return nil
	}
	return disk.WriteWhole(f.path(choicesFile), choices)
}
