'use strict';
// Finds the addon and the program of this platform, which lie in a package of their own.

/** Platforms with a prebuilt package. Others build theirs: `cargo xtask npm`. */
const PREBUILT = ['linux-x64-gnu'];

/** Returns the platform as its package is named. */
function platform() {
  const { platform, arch } = process;
  if (platform === 'win32') return `${platform}-${arch}-msvc`;
  if (platform !== 'linux') return `${platform}-${arch}`;
  // A report with the network asks other machines for names.
  if (process.report) /** @type {any} */ (process.report).excludeNetwork = true;
  const report = /** @type {any} */ (process.report?.getReport());
  return `${platform}-${arch}-${report?.header?.glibcVersionRuntime ? 'gnu' : 'musl'}`;
}

/** Returns the path of a file of the platform's package. */
function resolve(file) {
  const name = `@ruvllm/node-${platform()}`;
  try {
    return require.resolve(`${name}/${file}`);
  } catch (error) {
    const has = PREBUILT.includes(platform());
    const advice = has
      ? `the package ${name} is not installed; install without --no-optional`
      : `there is no package for ${platform()} yet; build it with 'cargo xtask npm' and install ${name}`;
    throw new Error(advice, { cause: error });
  }
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
