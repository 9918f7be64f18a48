/* SPDX-License-Identifier: Apache-2.0
 *
 * unsupported.c - see runtime.h: functions that a program may link and that do nothing here:
 * textures and surfaces, rare nodes of graphs, other processes and devices, graphics.
 *
 * Invariant: each says its name on stderr and returns cudaErrorNotSupported.
 */
#include "runtime/runtime.h"

/* clang-format off */
#define UNSUPPORTED(X) \
    X(cudaArrayGetInfo) X(cudaArrayGetMemoryRequirements) X(cudaArrayGetPlane)                     \
    X(cudaArrayGetSparseProperties) X(cudaCreateSurfaceObject) X(cudaCreateTextureObject)          \
    X(cudaDestroyExternalMemory) X(cudaDestroyExternalSemaphore) X(cudaDestroySurfaceObject)       \
    X(cudaDestroyTextureObject) X(cudaDeviceFlushGPUDirectRDMAWrites)                              \
    X(cudaDeviceGetGraphMemAttribute) X(cudaDeviceGetHostAtomicCapabilities)                       \
    X(cudaDeviceGetP2PAtomicCapabilities) X(cudaDeviceGetSharedMemConfig)                          \
    X(cudaDeviceGetTexture1DLinearMaxWidth) X(cudaDeviceGraphMemTrim)                              \
    X(cudaDeviceRegisterAsyncNotification) X(cudaDeviceSetGraphMemAttribute)                       \
    X(cudaDeviceSetSharedMemConfig) X(cudaDeviceUnregisterAsyncNotification)                       \
    X(cudaExternalMemoryGetMappedBuffer) X(cudaExternalMemoryGetMappedMipmappedArray)              \
    X(cudaFreeArray) X(cudaFreeMipmappedArray) X(cudaFuncGetParamInfo)                             \
    X(cudaFuncSetSharedMemConfig) X(cudaGetChannelDesc) X(cudaGetExportTable)                      \
    X(cudaGetMipmappedArrayLevel) X(cudaGetSurfaceObjectResourceDesc)                              \
    X(cudaGetTextureObjectResourceDesc) X(cudaGetTextureObjectResourceViewDesc)                    \
    X(cudaGetTextureObjectTextureDesc) X(cudaGraphAddEventRecordNode)                              \
    X(cudaGraphAddEventWaitNode) X(cudaGraphAddExternalSemaphoresSignalNode)                       \
    X(cudaGraphAddExternalSemaphoresWaitNode) X(cudaGraphAddMemAllocNode)                          \
    X(cudaGraphAddMemFreeNode) X(cudaGraphAddNode) X(cudaGraphChildGraphNodeGetGraph)              \
    X(cudaGraphConditionalHandleCreate) X(cudaGraphDebugDotPrint) X(cudaGraphDestroyNode)          \
    X(cudaGraphEventRecordNodeGetEvent) X(cudaGraphEventRecordNodeSetEvent)                        \
    X(cudaGraphEventWaitNodeGetEvent) X(cudaGraphEventWaitNodeSetEvent)                            \
    X(cudaGraphExecChildGraphNodeSetParams) X(cudaGraphExecEventRecordNodeSetEvent)                \
    X(cudaGraphExecEventWaitNodeSetEvent) X(cudaGraphExecExternalSemaphoresSignalNodeSetParams)    \
    X(cudaGraphExecExternalSemaphoresWaitNodeSetParams) X(cudaGraphExecGetFlags)                   \
    X(cudaGraphExecHostNodeSetParams) X(cudaGraphExecMemcpyNodeSetParams)                          \
    X(cudaGraphExecMemcpyNodeSetParams1D) X(cudaGraphExecMemcpyNodeSetParamsFromSymbol)            \
    X(cudaGraphExecMemcpyNodeSetParamsToSymbol) X(cudaGraphExecMemsetNodeSetParams)                \
    X(cudaGraphExecNodeSetParams) X(cudaGraphExternalSemaphoresSignalNodeGetParams)                \
    X(cudaGraphExternalSemaphoresSignalNodeSetParams)                                              \
    X(cudaGraphExternalSemaphoresWaitNodeGetParams)                                                \
    X(cudaGraphExternalSemaphoresWaitNodeSetParams) X(cudaGraphGetEdges)                           \
    X(cudaGraphGetRootNodes) X(cudaGraphHostNodeGetParams) X(cudaGraphHostNodeSetParams)           \
    X(cudaGraphInstantiateWithParams) X(cudaGraphKernelNodeCopyAttributes)                         \
    X(cudaGraphKernelNodeGetAttribute) X(cudaGraphKernelNodeGetParams)                             \
    X(cudaGraphKernelNodeSetAttribute) X(cudaGraphKernelNodeSetParams)                             \
    X(cudaGraphMemAllocNodeGetParams) X(cudaGraphMemFreeNodeGetParams)                             \
    X(cudaGraphMemcpyNodeGetParams) X(cudaGraphMemcpyNodeSetParams)                                \
    X(cudaGraphMemcpyNodeSetParams1D) X(cudaGraphMemcpyNodeSetParamsFromSymbol)                    \
    X(cudaGraphMemcpyNodeSetParamsToSymbol) X(cudaGraphMemsetNodeGetParams)                        \
    X(cudaGraphMemsetNodeSetParams) X(cudaGraphNodeFindInClone) X(cudaGraphNodeGetDependencies)    \
    X(cudaGraphNodeGetDependentNodes) X(cudaGraphNodeGetEnabled) X(cudaGraphNodeGetType)           \
    X(cudaGraphNodeSetEnabled) X(cudaGraphNodeSetParams) X(cudaGraphReleaseUserObject)             \
    X(cudaGraphRemoveDependencies) X(cudaGraphRetainUserObject) X(cudaGraphicsGLRegisterBuffer)    \
    X(cudaGraphicsGLRegisterImage) X(cudaGraphicsMapResources)                                     \
    X(cudaGraphicsResourceGetMappedMipmappedArray) X(cudaGraphicsResourceGetMappedPointer)         \
    X(cudaGraphicsResourceSetMapFlags) X(cudaGraphicsSubResourceGetMappedArray)                    \
    X(cudaGraphicsUnmapResources) X(cudaGraphicsUnregisterResource) X(cudaImportExternalMemory)    \
    X(cudaImportExternalSemaphore) X(cudaIpcCloseMemHandle) X(cudaIpcGetEventHandle)               \
    X(cudaIpcGetMemHandle) X(cudaIpcOpenEventHandle) X(cudaIpcOpenMemHandle)                       \
    X(cudaKernelSetAttributeForDevice) X(cudaLibraryEnumerateKernels) X(cudaLibraryGetGlobal)      \
    X(cudaLibraryGetKernel) X(cudaLibraryGetKernelCount) X(cudaLibraryGetManaged)                  \
    X(cudaLibraryGetUnifiedFunction) X(cudaLibraryLoadData) X(cudaLibraryLoadFromFile)             \
    X(cudaLibraryUnload) X(cudaLogsCurrent) X(cudaLogsDumpToFile) X(cudaLogsDumpToMemory)          \
    X(cudaLogsRegisterCallback) X(cudaLogsUnregisterCallback) X(cudaMalloc3DArray)                 \
    X(cudaMallocArray) X(cudaMallocMipmappedArray) X(cudaMemDiscardAndPrefetchBatchAsync)          \
    X(cudaMemDiscardBatchAsync) X(cudaMemGetDefaultMemPool) X(cudaMemGetMemPool)                   \
    X(cudaMemPoolExportPointer) X(cudaMemPoolExportToShareableHandle) X(cudaMemPoolGetAccess)      \
    X(cudaMemPoolImportFromShareableHandle) X(cudaMemPoolImportPointer)                            \
    X(cudaMemPrefetchBatchAsync) X(cudaMemRangeGetAttribute) X(cudaMemRangeGetAttributes)          \
    X(cudaMemSetMemPool) X(cudaMemcpy2DArrayToArray) X(cudaMemcpy2DFromArray)                      \
    X(cudaMemcpy2DFromArrayAsync) X(cudaMemcpy2DToArray) X(cudaMemcpy2DToArrayAsync)               \
    X(cudaMemcpy3DBatchAsync) X(cudaMemcpy3DPeer) X(cudaMemcpy3DPeerAsync)                         \
    X(cudaMemcpyBatchAsync) X(cudaMemcpyFromArray) X(cudaMemcpyToArray)                            \
    X(cudaMipmappedArrayGetMemoryRequirements) X(cudaMipmappedArrayGetSparseProperties)            \
    X(cudaSignalExternalSemaphoresAsync) X(cudaStreamBeginCaptureToGraph)                          \
    X(cudaStreamCopyAttributes) X(cudaStreamGetCaptureInfo)                                        \
    X(cudaStreamUpdateCaptureDependencies) X(cudaUserObjectCreate) X(cudaUserObjectRelease)        \
    X(cudaUserObjectRetain) X(cudaWaitExternalSemaphoresAsync)
/* clang-format on */

#define DEFINE(name)                                                                               \
    RT int name(void) {                                                                            \
        rt_say("%s is not supported", #name);                                                      \
        return rt_keep(RT_NOT_SUPPORTED);                                                          \
    }
UNSUPPORTED(DEFINE)
