'use strict';
// Finds the addon and the program of this platform, which lie in a package of their own.

/** Platforms with a prebuilt package. Others build theirs: `cargo xtask npm`. */
const PREBUILT = ['linux-x64-gnu'];

/** Returns the version of this machine's GNU C library, if it has one. */
function glibc() {
  // A report with the network asks other machines for names.
  if (process.report) /** @type {any} */ (process.report).excludeNetwork = true;
  return /** @type {any} */ (process.report?.getReport())?.header?.glibcVersionRuntime;
}

/** Returns the platform as its package is named. */
function platform() {
  const { platform, arch } = process;
  if (platform === 'win32') return `${platform}-${arch}-msvc`;
  if (platform !== 'linux') return `${platform}-${arch}`;
  return `${platform}-${arch}-${glibc() ? 'gnu' : 'musl'}`;
}

/** Throws where this machine's C library is older than that of the machine that built a package. */
function check(name) {
  const [has, needs] = [glibc(), require(`${name}/package.json`).ruvllm?.glibc];
  if (!has || !needs) return;
  const number = (version) => version.split('.').reduce((sum, part) => sum * 1000 + Number(part), 0);
  if (number(has) >= number(needs)) return;
  throw new Error(`${name} needs glibc ${needs}, and this machine has ${has}; take a newer system, or build the package here with 'cargo xtask npm'`);
}

/** Returns the path of a file of the platform's package. */
function resolve(file) {
  const name = `@ruvllm/node-${platform()}`;
  let path;
  try {
    path = require.resolve(`${name}/${file}`);
  } catch (error) {
    const has = PREBUILT.includes(platform());
    const advice = has
      ? `the package ${name} is not installed; install without --no-optional`
      : `there is no package for ${platform()} yet; build it with 'cargo xtask npm' and install ${name}`;
    throw new Error(advice, { cause: error });
  }
  check(name);
  return path;
}

/** Returns the addon. */
function addon() {
  return require(resolve('ruvllm.node'));
}

/** Returns the path of the program `ruvllm`. */
function program() {
  return resolve(process.platform === 'win32' ? 'bin/ruvllm.exe' : 'bin/ruvllm');
}

module.exports = { addon, platform, program };
